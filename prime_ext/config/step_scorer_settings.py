# SPDX-License-Identifier: Apache-2.0
"""The section ``step_scorer``: which scorer of steps, how and where it is asked. No torch."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from omegaconf import DictConfig
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import (
    STRICT,
    Count,
    Positive,
    PositiveOrZero,
    Section,
    SettingsError,
    Switch,
    Text,
    defaults_of,
    unread,
)

SECTION = "step_scorer"
# The reward manager that gives PRIME step scores beside the verifier's outcome (reward.reward_manager.name).
MANAGER = "naive_with_step_scores"

_BY_RESPONSE = "token_classification"


def _reservable(gpus: float) -> float:
    if gpus > 1 and gpus != int(gpus):
        raise ValueError("must be a fraction of one GPU, or whole ones, as Ray reserves them")
    return gpus


@dataclass(frozen=True, config=STRICT)
class ActorSettings:
    """The process on each node in which a local model works (``step_scorer.actor``)."""

    num_gpus: Annotated[PositiveOrZero, AfterValidator(_reservable)]
    cpu_threads: Count | None


@dataclass(frozen=True, config=STRICT)
class ScorerSettings(Section):
    """The section ``step_scorer``."""

    section = SECTION
    kind: Literal["local", "server"]
    model_path: Text | None
    architecture: Literal["sequence_classification", "token_classification"]
    separator: str
    layout: Literal["plain", "chat", "turns"]
    answer_tokens: Annotated[list[Text], Field(min_length=2, max_length=2)] | None
    pair_format: Mapping[str, Any] | None
    device: Text | None
    dtype: Text | None
    trust_remote_code: Switch
    address: Text | None
    concurrency: Count
    timeout_seconds: Positive
    attempts: Count
    api_key_variable: Text | None
    actor: ActorSettings

    @property
    def by_response(self) -> bool:
        """Whether the model reads a response at once, and not a step at a time."""
        return self.architecture == _BY_RESPONSE

    def problems(self) -> Iterable[str]:
        """What does not go together."""
        if self.model_path is None:
            yield f"{SECTION}.model_path is missing; give the folder of the step reward model"
        if self.by_response and self.kind == "server":
            yield f"{SECTION}.architecture={_BY_RESPONSE} has no server; set {SECTION}.kind=local"
        if self.by_response and self.layout == "turns" and self.answer_tokens is None:
            yield f"{SECTION}.answer_tokens=None: {SECTION}.layout=turns reads two answers, such as [+, -]"
        kind, architecture = (f"with {SECTION}.{key}={getattr(self, key)}" for key in ("kind", "architecture"))
        readings = [
            (("device", "dtype", "actor"), self.kind == "local", kind),
            (
                ("address", "concurrency", "timeout_seconds", "attempts", "api_key_variable"),
                self.kind == "server",
                kind,
            ),
            (("pair_format",), not self.by_response, architecture),
            (("separator", "layout", "answer_tokens"), self.by_response, architecture),
            (("separator",), self.layout != "turns", f"with {SECTION}.layout={self.layout}"),
        ]
        yield from unread(self, defaults_of("step_scorer/step_scorer.yaml"), SECTION, readings)


def scorer_of(config: DictConfig) -> ScorerSettings:
    """Read the section that :data:`MANAGER` needs from the whole configuration. Raises ``SettingsError``."""
    if config.get(SECTION) is None:
        raise SettingsError(
            f"reward.reward_manager.name={MANAGER} needs the section {SECTION}; use variant=step_scorer, or add it "
            f"with +{SECTION}={SECTION}"
        )
    return ScorerSettings.of(config)
