# SPDX-License-Identifier: Apache-2.0
"""The sections ``prime`` and ``prm``. Nothing here imports verl or torch, so that mistakes are reported at once."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field
from pydantic.dataclasses import dataclass
from typing_extensions import Self

from prime_ext.config.checks import (
    STRICT,
    Count,
    CountOrZero,
    Number,
    Positive,
    Section,
    Share,
    Switch,
    Text,
    defaults_of,
    nearest,
    unread,
)
from prime_ext.config.checks import SettingsError as SettingsError
from prime_ext.config.reward_settings import (
    AnchorSettings,
    OutcomeSettings,
    ProcessSettings,
    StepSettings,
    TurnSettings,
)
from prime_ext.config.variant import VARIANTS

# Those of prime_ext.algorithms.prm_losses; what they need is repeated here because nothing in this file imports torch.
Loss = Literal["ce", "dpo", "nca", "kto"]
LOSSES = get_args(Loss)
LOSSES_THAT_NEED_SCORES = ("dpo", "kto")
LOSSES_OF_HARD_LABELS = ("dpo", "kto")
OnFailure = Literal["drop", "zero", "stop"]
AtLeastOne = Annotated[Number, Field(ge=1)]


@dataclass(frozen=True, config=STRICT)
class FilterSettings:
    """Online prompt filter (``prime.filter``)."""

    enable: Switch
    lower: Share
    upper: Share
    drop_truncated: Switch
    oversample: AtLeastOne
    max_examined: AtLeastOne
    on_exhausted: Literal["error", "partial"]


@dataclass(frozen=True, config=STRICT)
class VerifierSettings:
    """What happens to a rollout that the verifier could not judge (``prime.verifier``)."""

    on_failure: OnFailure


@dataclass(frozen=True, config=STRICT)
class PrimeSettings(Section):
    """The section ``prime`` of the configuration."""

    section = "prime"
    variant: str
    outcome: OutcomeSettings
    process: ProcessSettings
    turns: TurnSettings
    anchor: AnchorSettings
    steps: StepSettings
    whitening: Switch
    label_key: Text
    verifier: VerifierSettings
    filter: FilterSettings

    @property
    def critic_sources(self) -> tuple[str, ...]:
        """The sources whose advantage needs a critic."""
        sources: dict[str, OutcomeSettings | ProcessSettings] = {"outcome": self.outcome}
        if self.pays_process_rewards:
            sources["process"] = self.process
        return tuple(name for name, part in sources.items() if part.coefficient > 0 and part.estimator == "gae")

    @property
    def distils(self) -> bool:
        """Whether the policy is pulled towards the PRM as a distribution."""
        return self.process.form == "kl" and self.process.coefficient > 0

    @property
    def pays_process_rewards(self) -> bool:
        """Whether the process rewards are a source of their own."""
        return self.process.form == "sampled" and self.process.coefficient > 0

    @property
    def rewards_tokens(self) -> bool:
        """Whether the scores of tokens or steps are read, as rewards or values."""
        return self.pays_process_rewards or self.outcome_reads_prm

    @property
    def one_value_of_both(self) -> bool:
        """Whether the critic's value is that of the summed rewards of both sources."""
        return len(self.critic_sources) == 2

    @property
    def gates(self) -> bool:
        """Whether the reliability gate scales the process rewards."""
        if self.process.reliability_gate is None:
            return self.process.coefficient > 0 and self.outcome.coefficient > 0
        return self.process.reliability_gate

    @property
    def outcome_reads_prm(self) -> bool:
        """Whether the outcome's estimator takes values from the PRM."""
        return self.outcome.coefficient > 0 and self.outcome.estimator == "prm_value"

    @property
    def needs_greedy(self) -> bool:
        """Whether a greedy response to every prompt has to be generated."""
        return self.outcome.coefficient > 0 and self.outcome.estimator == "remax"

    @property
    def needs_probabilities(self) -> bool:
        """Whether the old policy's probabilities of the tokens are read."""
        return self.process.target == "policy" and self.rewards_tokens

    @property
    def needs_steps(self) -> bool:
        """Whether the trainer cuts responses into steps; a step scorer tells where those that it scored end."""
        return self.process.scorer == "implicit_prm" and self.process.granularity == "step"

    @property
    def estimators(self) -> tuple[str, ...]:
        """Those of the sources that count."""
        parts: tuple[OutcomeSettings | ProcessSettings | TurnSettings, ...] = (self.outcome, self.turns)
        counting = (*parts, self.process) if self.pays_process_rewards else parts
        return tuple(part.estimator for part in counting if part.coefficient > 0)

    @property
    def needs_turns(self) -> bool:
        """Whether the turns of the responses are read."""
        return "turn_rloo" in self.estimators or self.turns.pays or self.process.granularity == "turn"

    def problems(self) -> Iterable[str]:
        """What does not go together."""
        outcome, process, band = self.outcome, self.process, self.filter
        reading = (("turns.discount", "turns.field"), self.turns.pays, "with prime.turns.coefficient=0")
        yield from unread(self, defaults_of("prime/prime.yaml"), "prime", [reading])
        yield from process.problems()
        yield from self.steps.problems("prime.steps")
        if self.variant not in VARIANTS:
            yield f"prime.variant={self.variant!r} is not one of {', '.join(VARIANTS)}{nearest(self.variant, VARIANTS)}"
        if band.lower > band.upper:
            yield f"prime.filter.lower={band.lower} is above prime.filter.upper={band.upper}; no prompt could be kept"
        if band.max_examined < band.oversample:
            yield f"prime.filter.max_examined={band.max_examined} is below prime.filter.oversample={band.oversample}"
        if outcome.coefficient == process.coefficient == self.turns.coefficient == 0:
            yield "prime.outcome.coefficient and prime.process.coefficient are both 0; one must count"
        if self.anchor.enable and self.anchor.fallback and not self.gates:
            yield "prime.anchor.fallback=true needs a gate: set it to false, or prime.process.reliability_gate=true"
        if self.distils and self.outcome_reads_prm:
            yield f"prime.outcome.estimator={outcome.estimator} reads rewards of tokens; set prime.process.form=sampled"


# Tokens of a pass without gradients, as a multiple of those of a training pass; and where more make a GPU no busier.
FORWARD_MULTIPLE, FORWARD_LIMIT = 4, 32768


def forward_tokens(prm: Mapping[str, Any]) -> int:
    """Tokens per GPU of a pass without gradients through the PRM or its reference, from the section ``prm``.

    By default four times those of a training pass, up to 32,768, with ``prm.model.use_fused_kernels``; otherwise as
    many as in training, because the logits would be the peak of memory.
    """
    if prm["infer_max_token_len_per_gpu"] is not None:
        return int(prm["infer_max_token_len_per_gpu"])
    training = int(prm["max_token_len_per_gpu"])
    if not prm["model"]["use_fused_kernels"]:
        return training
    return max(training, min(FORWARD_MULTIPLE * training, FORWARD_LIMIT))


@dataclass(frozen=True, config=STRICT)
class BiasSettings:
    """Trained bias of the PRM's cross-entropy (``prm.bias``)."""

    enable: Switch
    lr: Positive
    init: Annotated[Number, Field(ge=-20, le=20)] | None


@dataclass(frozen=True, config=STRICT)
class ReplaySettings:
    """Rollouts of earlier steps in the updates of the PRM (``prm.replay``)."""

    batches: CountOrZero
    ratio: Positive


# Sections of prm that are verl's own dataclasses.
VERL_SECTIONS = ("model", "engine", "optim", "checkpoint")


@dataclass(frozen=True, config=STRICT)
class PRMSettings(Section):
    """The section ``prm`` of the configuration, less :data:`VERL_SECTIONS`."""

    section = "prm"
    enable: Switch
    beta: Positive
    loss: Loss
    bias: BiasSettings
    update_mode: Literal["none", "before", "after", "interleaved"]
    replay: ReplaySettings
    epochs: Count
    trainable_layers: Count | Annotated[Number, Field(gt=0, lt=1)] | None
    reference: Literal["frozen", "policy", "kl", "base", "none"]
    reference_path: str | None
    mini_batch_size: Count
    use_dynamic_bsz: Switch
    micro_batch_size_per_gpu: Count | None
    max_token_len_per_gpu: Count
    infer_micro_batch_size_per_gpu: Count | None
    infer_max_token_len_per_gpu: Count | None
    accuracy_freq: CountOrZero

    @property
    def trained(self) -> bool:
        """Whether the PRM is ever trained. Otherwise it has no optimiser."""
        return self.update_mode != "none"

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build from the resolved section ``prm``. Raises :class:`SettingsError`."""
        if isinstance(values, Mapping):
            values = {key: value for key, value in values.items() if key not in VERL_SECTIONS}
        return super().from_mapping(values)

    def problems(self) -> Iterable[str]:
        """What does not go together."""
        of_policy, replay = self.reference in ("policy", "kl"), f"prm.replay.batches={self.replay.batches}"
        in_updates = ("epochs", "bias.enable", "trainable_layers", "replay.batches")
        readings = [
            (in_updates, self.trained or not self.enable, "with prm.update_mode=none"),
            (("bias.enable",), self.loss == "ce", f"with prm.loss={self.loss}, only with ce"),
        ]
        yield from unread(self, defaults_of("prm/implicit_prm.yaml"), "prm", readings)
        for key in ("micro_batch_size_per_gpu", "infer_micro_batch_size_per_gpu"):
            if not self.use_dynamic_bsz and getattr(self, key) is None:
                yield f"prm.{key}=None must be a whole number >= 1 with prm.use_dynamic_bsz=false"
        if self.loss in LOSSES_THAT_NEED_SCORES and self.update_mode == "interleaved":
            yield f"prm.loss={self.loss} needs scores before the update: prm.update_mode=after or before"
        if self.replay.batches and of_policy:
            yield f"{replay} needs prm.reference to stay: set it to frozen, base or none"
        if self.replay.batches and self.loss != "ce":
            yield f"{replay} draws single rollouts, and prm.loss={self.loss} compares those of a prompt; set it to ce"
