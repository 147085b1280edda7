# SPDX-License-Identifier: Apache-2.0
"""Which scorer of steps, how and where it is asked: one section, checked before Ray starts. No torch."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import (
    STRICT,
    Count,
    CountOrZero,
    Positive,
    PositiveOrZero,
    SettingsError,
    Switch,
    Text,
    read,
    refuse,
)

SECTION = "step_scorer"
# The reward manager that gives PRIME step scores beside the verifier's outcome (reward.reward_manager.name).
MANAGER = "naive_with_step_scores"
# Wrong, neutral, right.
LABELS = (-1, 0, 1)


@dataclass(frozen=True, config=STRICT)
class BatchingSettings:
    """How responses are collected, to be scored together (``step_scorer.batching``)."""

    window_ms: PositiveOrZero
    """Milliseconds that the first response waits for more."""
    max_tokens: Count
    """Tokens of the responses that are collected at most."""


def _reservable(gpus: float) -> float:
    if gpus > 1 and gpus != int(gpus):
        raise ValueError("must be a fraction of one GPU, or whole ones, as Ray reserves them")
    return gpus


@dataclass(frozen=True, config=STRICT)
class ActorSettings:
    """The process on each node in which a local model works (``step_scorer.actor``)."""

    num_gpus: Annotated[PositiveOrZero, AfterValidator(_reservable)]
    """GPUs that Ray reserves for it; 0: it works on the CPU."""
    cpu_threads: Count | None
    """Threads of the CPU; None: as Ray leaves it."""


@dataclass(frozen=True, config=STRICT)
class JudgeSettings:
    """How a chat model is asked for the first wrong step (``step_scorer.judge``)."""

    instruction: Text
    """Stands behind the question and the numbered steps; the answer is the last boxed number of the reply."""
    samples: Count
    """Replies to each response; the score of a step is the share of them in which it is right."""
    temperature: PositiveOrZero
    max_tokens: Count
    """Of a reply."""
    timeout_seconds: Positive
    """For one attempt: a whole reply."""


@dataclass(frozen=True, config=STRICT)
class ScorerSettings:
    """The section ``step_scorer``."""

    kind: Literal["local", "server"]
    """``local``: a model in this process. ``server``: ``/classify`` of vLLM, verl's reward-model pool or any URL."""
    model_path: Text | None
    """Folder of the step reward model; a server's as well, for its tokenizer and format (not with inputs=text)."""
    architecture: Literal["sequence_classification", "token_classification", "judge"]
    """``sequence_classification``: reads a step and those before it; ``token_classification``: the response at once;
    ``judge``: a chat model on a server that is asked for the first wrong step."""
    separator: str
    """Of ``token_classification``: text behind each step, where its score is read."""
    layout: Literal["plain", "chat", "turns"]
    """Of ``token_classification``: the prompt as it is, through the chat template, or each step as a turn of a chat."""
    positive_label: CountOrZero
    """Of ``token_classification``: class that means right."""
    answer_tokens: Annotated[
        Annotated[list[Text], Field(min_length=2, max_length=2)] | None,
        Field(description="two tokens, of a right and of a wrong step"),
    ]
    """Of ``token_classification``: what a causal model says of a right and of a wrong step; None for a classifier."""
    pair_format: Mapping[str, Any] | None
    """Fields of ``prime_ext.step_rm.description.PairFormat`` for a model without a description; None to read it."""
    cache_size: CountOrZero
    """Steps whose scores are remembered."""
    device: Text | None
    """Of the local model: cpu, cuda, ...; None for an accelerator if there is one."""
    dtype: Text | None
    """Of the local model; None for float32 on the CPU and bfloat16 elsewhere."""
    batch_tokens: Count | None
    """Tokens of a pass of the local model, padding included; None for 1024 on the CPU and 16384 elsewhere."""
    trust_remote_code: Switch
    """Whether the model may bring its own code."""
    address: Text | None
    """host:port or URL of the server; None for the router of verl's reward-model pool."""
    inputs: Literal["ids", "text"]
    """``ids`` sends token ids, ``text`` leaves tokenising to the server."""
    labels: Annotated[list[int] | None, Field(description="-1, 0 and 1 in the order of the classes")]
    """Label of each class of the served model, with inputs=text; None for -1, 0, 1."""
    served_model: Text | None
    """Name the server knows the model by; None for its only one."""
    batch_size: Count
    """Steps per request."""
    concurrency: Count
    """Requests at a time."""
    timeout_seconds: Positive
    """For one attempt."""
    attempts: Count
    """How often a request is made before the response counts as not scored."""
    backoff_seconds: PositiveOrZero
    """Pause before the second attempt; doubles."""
    api_key_variable: Text | None
    """Environment variable with the server's key."""
    batching: BatchingSettings
    actor: ActorSettings
    judge: JudgeSettings

    @property
    def needs_model(self) -> bool:
        """Whether the model's folder is read here."""
        return self.kind == "local" or (self.inputs == "ids" and self.architecture != "judge")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "ScorerSettings":
        """Build from the resolved section. Raises ``SettingsError``."""
        settings = read(cls, values, SECTION)
        refuse(settings._problems())
        return settings

    def _problems(self) -> Iterable[str]:
        if self.needs_model and self.model_path is None:
            yield f"{SECTION}.model_path is missing; give the folder of the step reward model"
        if self.labels is not None and sorted(self.labels) != sorted(LABELS):
            yield f"{SECTION}.labels={self.labels} must be -1, 0 and 1 in the order of the classes"
        if self.architecture == "judge" and self.kind != "server":
            yield f"{SECTION}.architecture=judge asks a server; set {SECTION}.kind=server and {SECTION}.address"
        if self.architecture == "judge" and self.judge.samples > 1 and self.judge.temperature == 0:
            yield f"{SECTION}.judge.samples={self.judge.samples} replies are all the same at temperature 0; raise it"
        if self.architecture == "token_classification":
            if self.kind == "server":
                yield f"{SECTION}.architecture=token_classification works with {SECTION}.kind=local only; set that"
            if self.layout == "turns" and self.answer_tokens is None:
                yield f"{SECTION}.answer_tokens=None: {SECTION}.layout=turns reads two answers, such as [+, -]"
            if self.layout == "turns" and self.separator != "\n":
                yield f"{SECTION}.separator={self.separator!r} is not read with {SECTION}.layout=turns; leave it"
            if self.pair_format is not None:
                yield f"{SECTION}.pair_format is of sequence_classification; set it to null"
        # Values that would be ignored.
        if self.labels is not None and self.needs_model:
            yield f"{SECTION}.labels={self.labels} is for inputs=text; the model has its own label map"
        if self.model_path is not None and not self.needs_model:
            yield f"{SECTION}.model_path={self.model_path!r} is not read with inputs=text or a judge; set it to null"
        if self.address is not None and self.kind == "local":
            yield f"{SECTION}.address={self.address!r} is not read with kind=local; set it to null"


def scorer_of(config: DictConfig) -> ScorerSettings:
    """The section that :data:`MANAGER` reads, from the whole configuration. Raises ``SettingsError``."""
    if config.get(SECTION) is None:
        raise SettingsError(
            f"reward.reward_manager.name={MANAGER} needs the section {SECTION}; use variant=step_scorer, or add it "
            f"with +{SECTION}={SECTION}"
        )
    return ScorerSettings.from_mapping(OmegaConf.to_container(config[SECTION], resolve=True))  # type: ignore[arg-type]
