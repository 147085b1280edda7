# SPDX-License-Identifier: Apache-2.0
"""The sections ``prime`` and ``prm``, without verl and torch, so that mistakes show at once."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import DictConfig
from pydantic import Field
from pydantic.dataclasses import dataclass

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
    limit_to,
    read,
    refuse,
)
from prime_ext.config.reward_settings import (
    AnchorSettings,
    GateSettings,
    KLSettings,
    OutcomeSettings,
    ProcessSettings,
    ScoredStepSettings,
    StepRewardSettings,
    Steps,
    TokenSettings,
    TurnSettings,
)
from prime_ext.config.verl_keys import PRM_SECTIONS
from prime_ext.names import PRM_LOSSES, Baseline, find_value_model

# A file for each variant.
VARIANTS_FOLDER = Path(__file__).parent / "variant"
VARIANTS = sorted(path.stem for path in VARIANTS_FOLDER.glob("*.yaml"))
Loss = Annotated[Text, limit_to(PRM_LOSSES.keys)]
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
    """Treatment of a rollout that the verifier could not judge (``prime.verifier``)."""

    on_failure: OnFailure


@dataclass(frozen=True, config=STRICT)
class PrimeSettings(Section):
    """The section ``prime`` of the configuration."""

    section = "prime"
    variant: Annotated[str, limit_to(lambda: VARIANTS)]
    outcome: OutcomeSettings
    process: ProcessSettings | None
    turns: TurnSettings | None
    anchor: AnchorSettings | None
    steps: Steps
    baseline: Baseline
    whitening: Switch
    label_key: Text
    verifier: VerifierSettings
    filter: FilterSettings

    @property
    def paid_process(self) -> TokenSettings | StepRewardSettings | ScoredStepSettings | None:
        """Return the settings of the process rewards; None without them, as in PRIME-D."""
        return None if isinstance(self.process, KLSettings) else self.process

    @property
    def estimators(self) -> dict[str, str]:
        """Return the estimator of each source that counts, by name."""
        outcome = self.outcome if self.outcome.coefficient > 0 else None
        sources = {"outcome": outcome, "process": self.paid_process, "turns": self.turns}
        return {name: source.estimator for name, source in sources.items() if source is not None}

    @property
    def critic_sources(self) -> tuple[str, ...]:
        """Return the sources that need a critic; of two it values the sum of their rewards."""
        return tuple(
            name
            for name, estimator in self.estimators.items()
            if find_value_model(estimator) == "critic"
        )

    @property
    def distils(self) -> bool:
        """Return whether the policy is pulled toward the PRM as a distribution."""
        return isinstance(self.process, KLSettings)

    @property
    def scores_steps(self) -> bool:
        """Return whether a step scorer gives the rewards, and not the implicit PRM."""
        return isinstance(self.process, ScoredStepSettings)

    @property
    def needs_labels(self) -> bool:
        """Return whether something reads verdicts: outcome, filter, gate, or the implicit PRM."""
        reads = self.outcome.coefficient > 0 or self.filter.enable or self.gate is not None
        return reads or (self.process is not None and not self.scores_steps)

    @property
    def gate(self) -> GateSettings | None:
        """Return the settings of the gate that scales the process rewards, if there is one."""
        return None if self.process is None else self.process.gate

    @property
    def outcome_reads_prm(self) -> bool:
        """Return whether the outcome's estimator takes values from the PRM."""
        return find_value_model(self.estimators.get("outcome", "")) == "prm"

    @property
    def rewards_advantages(self) -> bool:
        """Return whether a token's reward is the PRM's log-probability minus the policy's.

        The policy is the one that wrote the token.
        """
        return isinstance(self.process, TokenSettings) and self.process.target == "policy"

    @property
    def granularity(self) -> str:
        """Return the unit of a process reward: ``token``, ``step``, ``turn`` or ``response``."""
        return getattr(self.process, "granularity", "token")

    @property
    def needs_steps(self) -> bool:
        """Return whether the trainer cuts responses into steps; a step scorer cuts them itself."""
        return self.granularity == "step" and not self.scores_steps

    @property
    def needs_turns(self) -> bool:
        """Return whether the turns of the responses are read."""
        return (
            "turn_rloo" in self.estimators.values()
            or self.turns is not None
            or self.granularity == "turn"
        )

    def problems(self) -> Iterable[str]:
        """Yield the conflicts between settings."""
        band = self.filter
        if self.paid_process is not None:
            yield from self.paid_process.problems()
        if band.lower > band.upper:
            yield (
                f"prime.filter.lower={band.lower} is above prime.filter.upper={band.upper}; no"
                " prompt could be kept"
            )
        if band.max_examined < band.oversample:
            yield (
                f"prime.filter.max_examined={band.max_examined} is below"
                f" prime.filter.oversample={band.oversample}"
            )
        if band.enable and (band.lower == 1 or band.upper == 0):
            yield (
                f"prime.filter.lower={band.lower} and prime.filter.upper={band.upper} keep only"
                " prompts whose rollouts are all alike, which teach nothing; widen them"
            )
        if not self.estimators:
            # PRIME-D's divergence stands next to PPO's loss, which needs an advantage.
            yield (
                f"prime.outcome.coefficient={self.outcome.coefficient} without rewards of tokens,"
                " steps or turns leaves nothing to learn from; set it above 0"
            )
        if self.anchor is not None and self.anchor.fallback and self.gate is None:
            yield "prime.anchor.fallback=true needs prime.process.gate; choose prime/anchor=ema"
        if self.distils and self.outcome_reads_prm:
            yield (
                "prime.outcome.estimator=prm_value reads rewards of tokens; choose"
                " prime/process=tokens"
            )


# An extra pass in every tenth step measures the pair accuracy after the PRM's update
# (update_mode=before: before it).
STEPS_PER_MEASUREMENT = 10
# Tokens of a pass without gradients: this multiple of a training pass's, up to the number that
# keeps a GPU busy.
FORWARD_MULTIPLE = 4
FORWARD_LIMIT = 32768


def forward_tokens(prm: Mapping[str, Any]) -> int:
    """Return the tokens per GPU of a pass without gradients through the PRM or its reference.

    ``prm`` is the section. By default they are four times those of a training pass, up to 32,768,
    with ``prm.model.use_fused_kernels``; otherwise as many as in training, because the logits would
    be the peak of memory.
    """
    if prm["infer_max_token_len_per_gpu"] is not None:
        return int(prm["infer_max_token_len_per_gpu"])
    training = int(prm["max_token_len_per_gpu"])
    if not prm["model"]["use_fused_kernels"]:
        return training
    return max(training, min(FORWARD_MULTIPLE * training, FORWARD_LIMIT))


def prm_section(config: DictConfig) -> DictConfig | None:
    """Return the section ``prm`` of a configuration; None where no PRM is built to read it."""
    prime = config.get("prime")
    if prime is None:
        return None
    by_process = prime.process is not None and prime.process.get("form") != "step_scorer"
    by_outcome = prime.outcome.coefficient > 0 and prime.outcome.estimator == "prm_value"
    return config.prm if by_process or by_outcome else None


@dataclass(frozen=True, config=STRICT)
class PRMSettings(Section):
    """The section ``prm`` of a never trained model (``prm=frozen``), without ``PRM_SECTIONS``."""

    section = "prm"
    update_mode: Literal["none", "before", "after", "interleaved"]
    beta: Positive
    reference: Literal["frozen", "policy", "base"]
    reference_path: str | None
    mini_batch_size: Count
    use_dynamic_bsz: Switch
    micro_batch_size_per_gpu: Count | None
    max_token_len_per_gpu: Count
    infer_max_token_len_per_gpu: Count | None

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "PRMSettings":
        """Build from the resolved section ``prm``, trained or not. Raises SettingsError."""
        prm_values = {key: value for key, value in values.items() if key not in PRM_SECTIONS}
        kind = PRMSettings if prm_values.get("update_mode") == "none" else TrainedPRMSettings
        settings = read(kind, prm_values, "prm")
        refuse(settings.problems())
        return settings

    def problems(self) -> Iterable[str]:
        """Yield the conflicts between settings."""
        if not self.use_dynamic_bsz and self.micro_batch_size_per_gpu is None:
            yield (
                "prm.micro_batch_size_per_gpu=None must be a whole number >= 1 with"
                " prm.use_dynamic_bsz=false"
            )


@dataclass(frozen=True, config=STRICT)
class TrainedPRMSettings(PRMSettings):
    """The section ``prm`` of an implicit PRM that is trained online."""

    loss: Loss
    bias_lr: Positive | None
    epochs: Count
    replay: CountOrZero
    trainable_layers: Annotated[Number, Field(gt=0, lt=1)] | None

    def problems(self) -> Iterable[str]:
        """Yield the conflicts between settings."""
        yield from super().problems()
        replay = f"prm.replay={self.replay}"
        if self.bias_lr is not None and self.loss != "ce":
            yield (
                f"prm.bias_lr={self.bias_lr} has no effect with prm.loss={self.loss}, only with ce;"
                " set it to null"
            )
        if PRM_LOSSES[self.loss].needs_scores and self.update_mode == "interleaved":
            yield (
                f"prm.loss={self.loss} needs scores before the update: prm.update_mode=after or"
                " before"
            )
        if self.replay and self.reference == "policy":
            yield f"{replay} needs prm.reference to stay: set it to frozen or base"
        if self.replay and self.loss != "ce":
            yield (
                f"{replay} draws single rollouts, and prm.loss={self.loss} compares those of a"
                " prompt; set it to ce"
            )
