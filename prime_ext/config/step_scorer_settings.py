# SPDX-License-Identifier: Apache-2.0
"""The section ``step_scorer``: which scorer of steps is used, and where it runs. No torch."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import AfterValidator, Field, Tag
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import (
    STRICT,
    Count,
    Escaped,
    Positive,
    PositiveOrZero,
    SettingsError,
    Switch,
    Text,
    choose_by,
    read,
)

SECTION = "step_scorer"
# The reward manager that gives PRIME step scores with the verifier's outcome
# (reward.reward_manager.name).
MANAGER = "naive_with_step_scores"


def _check_reservable(gpus: float) -> float:
    if gpus > 1 and gpus != int(gpus):
        raise ValueError("must be a fraction of one GPU, or whole ones, as Ray reserves them")
    return gpus


@dataclass(frozen=True, config=STRICT)
class ActorSettings:
    """The process on each node in which a local model works (``step_scorer.actor``)."""

    num_gpus: Annotated[PositiveOrZero, AfterValidator(_check_reservable)]
    cpu_threads: Count | None


@dataclass(frozen=True, config=STRICT)
class _Scorer:
    model_path: Text | None
    trust_remote_code: Switch


@dataclass(frozen=True, config=STRICT)
class _NodeScorer(_Scorer):
    device: Text | None
    dtype: Text | None
    actor: ActorSettings


@dataclass(frozen=True, config=STRICT)
class LocalScorerSettings(_NodeScorer):
    """A step reward model in a process on each node, a step at a time (``step_scorer=local``)."""

    kind: Literal["local"]
    pair_format: Mapping[str, Any] | None


@dataclass(frozen=True, config=STRICT)
class TokenClassifierSettings(_NodeScorer):
    """A model there that reads a response at once (``step_scorer=token_classification``)."""

    kind: Literal["token_classification"]
    separator: Escaped
    layout: Literal["plain", "chat"]
    answer_tokens: Annotated[list[Text], Field(min_length=2, max_length=2)] | None


@dataclass(frozen=True, config=STRICT)
class ServerSettings(_Scorer):
    """A server (``step_scorer=server``)."""

    kind: Literal["server"]
    pair_format: Mapping[str, Any] | None
    address: Text | None
    concurrency: Count
    timeout_seconds: Positive
    attempts: Count


# The section ``step_scorer``.
ScorerSettings = LocalScorerSettings | TokenClassifierSettings | ServerSettings
_Tagged: Any = Annotated[
    Annotated[LocalScorerSettings, Tag("<local>")]
    | Annotated[TokenClassifierSettings, Tag("<token_classification>")]
    | Annotated[ServerSettings, Tag("<server>")],
    choose_by("kind", "step_scorer=local, token_classification or server"),
]


def read_scorer(values: Any) -> ScorerSettings:
    """Read the resolved section. Raises :class:`SettingsError`."""
    settings: ScorerSettings = read(_Tagged, values, SECTION)
    if settings.model_path is None:
        raise SettingsError(
            f"{SECTION}.model_path is missing; give the folder of the step reward model"
        )
    return settings


def require_scorer(config: DictConfig) -> ScorerSettings:
    """Read the section that managers with step scores need. Raises ``SettingsError``."""
    if config.get(SECTION) is None:
        name = config.reward.reward_manager.name
        raise SettingsError(
            f"reward.reward_manager.name={name} needs the section {SECTION}; add +{SECTION}=local"
        )
    return read_scorer(OmegaConf.to_container(config[SECTION], resolve=True))
