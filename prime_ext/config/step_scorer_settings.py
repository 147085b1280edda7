# SPDX-License-Identifier: Apache-2.0
"""Which scorer of steps, how and where it is asked: one section, checked before Ray starts. No torch."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from omegaconf import DictConfig
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import (
    STRICT,
    Count,
    CountOrZero,
    Positive,
    PositiveOrZero,
    Reading,
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
# Wrong, neutral, right.
LABELS = (-1, 0, 1)

_OF_STEPS, _OF_RESPONSES = "sequence_classification", "token_classification"
_SERVER: dict[str, tuple[Any, ...]] = {"kind": ("server",)}
_LOCAL: dict[str, tuple[Any, ...]] = {"kind": ("local",)}
_CLASSIFIER: dict[str, tuple[Any, ...]] = {"architecture": (_OF_STEPS, _OF_RESPONSES)}
_BY_RESPONSE: dict[str, tuple[Any, ...]] = {"architecture": (_OF_RESPONSES,)}
_BY_STEP: dict[str, tuple[Any, ...]] = {"architecture": (_OF_STEPS,)}
# Each key, and the values of other keys with which it is read: all of them must hold. Elsewhere it has no effect, and
# another value than the default is refused.
READ_WITH: dict[str, dict[str, tuple[Any, ...]]] = {
    "kind": {},
    "architecture": {},
    "cache_size": {},
    "batching": {},
    "model_path": _CLASSIFIER | {"inputs": ("ids",)},
    "trust_remote_code": _CLASSIFIER | {"inputs": ("ids",)},
    "separator": _BY_RESPONSE | {"layout": ("plain", "chat")},
    "layout": _BY_RESPONSE,
    "positive_label": _BY_RESPONSE | {"answer_tokens": (None,)},
    "answer_tokens": _BY_RESPONSE,
    "pair_format": _BY_STEP,
    "device": _LOCAL,
    "dtype": _LOCAL,
    "batch_tokens": _LOCAL,
    "actor": _LOCAL,
    "address": _SERVER,
    "inputs": _BY_STEP | _SERVER,
    "labels": _BY_STEP | _SERVER | {"inputs": ("text",)},
    "served_model": _SERVER,
    "batch_size": _BY_STEP | _SERVER,
    "concurrency": _SERVER,
    "timeout_seconds": _CLASSIFIER | _SERVER,
    "attempts": _SERVER,
    "backoff_seconds": _CLASSIFIER | _SERVER,
    "api_key_variable": _SERVER,
    "judge": {"architecture": ("judge",)},
}


@dataclass(frozen=True, config=STRICT)
class BatchingSettings:
    """How responses are collected, to be scored together (``step_scorer.batching``)."""

    window_ms: PositiveOrZero
    max_tokens: Count


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
class JudgeSettings:
    """How a chat model is asked for the first wrong step (``step_scorer.judge``)."""

    instruction: Text
    samples: Count
    temperature: PositiveOrZero
    max_tokens: Count
    timeout_seconds: Positive


@dataclass(frozen=True, config=STRICT)
class ScorerSettings(Section):
    """The section ``step_scorer``."""

    section = SECTION
    kind: Literal["local", "server"]
    model_path: Text | None
    architecture: Literal["sequence_classification", "token_classification", "judge"]
    separator: str
    layout: Literal["plain", "chat", "turns"]
    positive_label: CountOrZero
    answer_tokens: Annotated[
        Annotated[list[Text], Field(min_length=2, max_length=2)] | None,
        Field(description="two tokens, of a right and of a wrong step"),
    ]
    pair_format: Mapping[str, Any] | None
    cache_size: CountOrZero
    device: Text | None
    dtype: Text | None
    batch_tokens: Count | None
    trust_remote_code: Switch
    address: Text | None
    inputs: Literal["ids", "text"]
    labels: Annotated[list[int] | None, Field(description="-1, 0 and 1 in the order of the classes")]
    served_model: Text | None
    batch_size: Count
    concurrency: Count
    timeout_seconds: Positive
    attempts: Count
    backoff_seconds: PositiveOrZero
    api_key_variable: Text | None
    batching: BatchingSettings
    actor: ActorSettings
    judge: JudgeSettings

    @property
    def needs_model(self) -> bool:
        """Whether the model's folder is read here."""
        if self.architecture == _OF_STEPS:
            return self.kind == "local" or self.inputs == "ids"
        return self.architecture == _OF_RESPONSES

    def problems(self) -> Iterable[str]:
        """What does not go together."""
        if self.needs_model and self.model_path is None:
            yield f"{SECTION}.model_path is missing; give the folder of the step reward model"
        if self.labels is not None and sorted(self.labels) != sorted(LABELS):
            yield f"{SECTION}.labels={self.labels} must be -1, 0 and 1 in the order of the classes"
        if self.architecture == "judge" and self.kind != "server":
            yield f"{SECTION}.architecture=judge asks a server; set {SECTION}.kind=server and {SECTION}.address"
        if self.architecture == "judge" and self.judge.samples > 1 and self.judge.temperature == 0:
            yield f"{SECTION}.judge.samples={self.judge.samples} replies are all the same at temperature 0; raise it"
        if self.architecture == _OF_RESPONSES and self.layout == "turns" and self.answer_tokens is None:
            yield f"{SECTION}.answer_tokens=None: {SECTION}.layout=turns reads two answers, such as [+, -]"
        defaults = defaults_of("step_scorer/step_scorer.yaml")
        yield from unread(self, defaults, SECTION, [self._reading(key, needed) for key, needed in READ_WITH.items()])

    def _reading(self, key: str, needed: Mapping[str, tuple[Any, ...]]) -> Reading:
        for other, allowed in needed.items():
            if (found := getattr(self, other)) not in allowed:
                only = " or ".join("null" if each is None else each for each in allowed)
                return [key], False, f"with {SECTION}.{other}={found}, only with {only}"
        return [key], True, ""


def scorer_of(config: DictConfig) -> ScorerSettings:
    """The section that :data:`MANAGER` reads, from the whole configuration. Raises ``SettingsError``."""
    if config.get(SECTION) is None:
        raise SettingsError(
            f"reward.reward_manager.name={MANAGER} needs the section {SECTION}; use variant=step_scorer, or add it "
            f"with +{SECTION}={SECTION}"
        )
    return ScorerSettings.of(config)
