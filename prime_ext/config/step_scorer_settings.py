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
    refuse,
)
from prime_ext.names import PAYING_MANAGER, STEP_SCORES_MANAGER

SECTION = "step_scorer"
Judgement = Literal["first-error", "scores"]


def _check_reservable(gpus: float) -> float:
    if gpus > 1 and gpus != int(gpus):
        raise ValueError("must be a fraction of one GPU, or whole ones, as Ray reserves them")
    return gpus


@dataclass(frozen=True, config=STRICT)
class ActorSettings:
    """The process on each node in which a local model works (``step_scorer.actor``)."""

    num_gpus: Annotated[PositiveOrZero, AfterValidator(_check_reservable)] = 0.0
    """GPUs that Ray reserves for it on each node, on top of trainer.n_gpus_per_node; may be a
    fraction. 0: it works on the CPU."""
    cpu_threads: Count | None = None
    """CPU threads; null: the number that Ray and OMP_NUM_THREADS set, which is one."""


@dataclass(frozen=True, config=STRICT)
class _Scorer:
    model_path: Text | None = None
    """Folder of the step reward model; with a server that of the served one, for its tokenizer and
    format."""
    trust_remote_code: Switch = False
    """Whether the model may bring its own code."""


@dataclass(frozen=True, config=STRICT)
class _NodeScorer(_Scorer):
    device: Text | None = None
    """cpu, cuda, ...; null: an accelerator if the process sees one (step_scorer.actor.num_gpus)."""
    dtype: Text | None = None
    """Type of the weights; null: float32 on the CPU, bfloat16 elsewhere."""
    actor: ActorSettings = ActorSettings()
    """The process on each node in which the model works."""


@dataclass(frozen=True, config=STRICT)
class _PairScorer(_Scorer):
    pair_format: Mapping[str, Any] | None = None
    """Input format of a model without prime_ext_step_rm.json: {layout: text} for PSPO's, see
    PairFormat. null: as in the model's own description."""


@dataclass(frozen=True, config=STRICT)
class LocalScorerSettings(_NodeScorer, _PairScorer):
    """A step reward model in a process on each node.

    It scores one step at a time, given the steps before it (prime_ext.step_rm.train, PSPO's):
    docs/reference/step_rm.md.
    """

    kind: Literal["local"] = "local"


@dataclass(frozen=True, config=STRICT)
class ResponseFormat:
    """Input format of a published PRM: the prompt, and the separator after each step."""

    separator: Escaped = "\n"
    """Text after each step, where its score is read: a line break (TRL), " ки" (Math-Shepherd),
    <extra_0> (Qwen2.5-Math-PRM). On the command line \\n, \\t and \\\\ are escapes."""
    layout: Literal["plain", "chat"] = "plain"
    """plain (the prompt as it is, TRL) or chat (through the chat template, Qwen2.5-Math-PRM)."""
    answer_tokens: Annotated[list[Text], Field(min_length=2, max_length=2)] | None = None
    """Tokens by which a causal language model marks a right and a wrong step, ["+", "-"] for
    Math-Shepherd; null: the model is a classifier, and its class 1 means right."""


@dataclass(frozen=True, config=STRICT)
class TokenClassifierSettings(_NodeScorer, ResponseFormat):
    """A published PRM in a process on each node: step_scorer=token_classification.

    It reads the response once and scores each step at its end, by the probability that it is right
    (TRL's PRMs, Qwen2.5-Math-PRM, Skywork, Math-Shepherd).
    """

    kind: Literal["token_classification"] = "token_classification"


@dataclass(frozen=True, config=STRICT)
class RemoteSettings:
    """A scorer at a server, and how requests reach it."""

    address: Text | None = None
    """host:port or URL; null: the router of verl's reward-model pool
    (reward.reward_model.enable=true)."""
    concurrency: Count = 16
    """Concurrent requests from each node."""
    timeout_seconds: Positive = 60.0
    """Seconds for one attempt."""
    attempts: Count = 3
    """Attempts of a request before its responses count as not scored."""


@dataclass(frozen=True, config=STRICT)
class ServerSettings(RemoteSettings, _PairScorer):
    """A step reward model or a published PRM that vLLM serves: step_scorer=server.

    It is in verl's reward-model pool or at any URL.
    """

    kind: Literal["server"] = "server"
    response_format: ResponseFormat | None = None
    """Input format of a published PRM, which reads a response once (/pooling): {} for TRL's,
    {separator: "<extra_0>", layout: chat} for Qwen2.5-Math-PRM. null: a step reward model, which
    reads one step at a time (/classify)."""


@dataclass(frozen=True, config=STRICT)
class JudgeSettings(RemoteSettings):
    """A language model that judges steps, at a server with OpenAI's interface: step_scorer=judge.

    It reads a problem and all steps of a response once, and answers in JSON.
    """

    kind: Literal["judge"] = "judge"
    address: Text | None = None
    """host:port or URL; /v1 may be missing."""
    model: Text | None = None
    """Name of the model at the server."""
    judgement: Judgement = "first-error"
    """first-error: steps before the first wrong one have the score 1, the others 0. scores: the
    judge's probability that each step is right."""
    temperature: PositiveOrZero = 0.0
    """Temperature of the judge; 0: greedy."""
    max_new_tokens: Count = 1024
    """Tokens of an answer at most."""
    api_key_env: Text | None = None
    """Environment variable with the server's key."""
    timeout_seconds: Positive = 120.0


# The section ``step_scorer``.
ScorerSettings = LocalScorerSettings | TokenClassifierSettings | ServerSettings | JudgeSettings
_Tagged: Any = Annotated[
    Annotated[LocalScorerSettings, Tag("<local>")]
    | Annotated[TokenClassifierSettings, Tag("<token_classification>")]
    | Annotated[ServerSettings, Tag("<server>")]
    | Annotated[JudgeSettings, Tag("<judge>")],
    choose_by("kind", "step_scorer=local, token_classification, server or judge"),
]


def read_scorer(values: Any) -> ScorerSettings:
    """Read the resolved section. Raises :class:`SettingsError`."""
    settings: ScorerSettings = read(_Tagged, values, SECTION)
    required = {"model_path": "the folder of the step reward model"}
    if isinstance(settings, JudgeSettings):
        required = {"address": "the URL of the judge", "model": "its name at the server"}
    refuse(
        f"{SECTION}.{name} is missing; give {what}"
        for name, what in required.items()
        if getattr(settings, name) is None
    )
    if isinstance(settings, ServerSettings) and settings.pair_format and settings.response_format:
        raise SettingsError(
            f"{SECTION}.pair_format and {SECTION}.response_format: a model has one of the two;"
            " leave the other at null"
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


def scorer_section(config: DictConfig) -> DictConfig | None:
    """Return the section ``step_scorer`` if the reward manager reads it."""
    reads_scorer = get_manager_name(config) in (STEP_SCORES_MANAGER, PAYING_MANAGER)
    return config.get(SECTION) if reads_scorer else None


def get_manager_name(config: DictConfig) -> str | None:
    """Return the name of the reward manager; None for one of a user's own file."""
    manager = config.reward.reward_manager
    return manager.name if manager.source == "register" else None
