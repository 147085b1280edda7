# SPDX-License-Identifier: Apache-2.0
"""The settings that prime_ext adds to verl's configuration, as validated dataclasses.

Every check names the key, what it got and what it wants. Nothing here imports verl or torch, so that a mistake is
reported before anything starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prime_ext.config.checks import SettingsError, boolean, build, choice, number, whole_number
from prime_ext.config.reward_settings import (
    ESTIMATORS_OF_THE_PRM,
    AnchorSettings,
    OutcomeSettings,
    ProcessSettings,
    SegmentSettings,
    SelectionSettings,
    StepSettings,
)
from prime_ext.config.variant import VARIANTS

# Those of prime_ext.algorithms.prm_losses; what they need is repeated here because nothing in this file imports torch.
LOSSES = ("ce", "bon_acc", "bon_rm", "dpo", "nca", "kto", "ipvrm")
LOSSES_THAT_NEED_SCORES = ("bon_rm", "dpo", "kto")
LOSSES_OF_HARD_LABELS = ("dpo", "kto", "ipvrm")
LOSSES_WITH_BIAS = ("ce", "bon_acc", "bon_rm")
# What prm.loss_options may hold: the options of each loss and their types.
LOSS_OPTIONS: dict[str, dict[str, type]] = {
    "kto": {"desirable_weight": float, "undesirable_weight": float},
    "ipvrm": {"margin": float, "adaptive_boundary": bool, "dynamic_weight": bool, "time_weight": str},
}
TIME_WEIGHTS = ("uniform", "early", "late")
UPDATE_MODES = ("none", "before", "after", "interleaved", "reverse")
REFERENCES = ("frozen", "policy", "kl", "base", "none")
REFRESH_SOURCES = ("policy", "prm")
TRAIN_ON = ("kept", "judged")
REPLAY_STORES = ("disk", "memory")

ON_EXHAUSTED = ("error", "partial")
ON_VERIFIER_FAILURE = ("drop", "zero", "stop")


@dataclass(frozen=True)
class FilterSettings:
    """Online prompt filter (``prime.filter``)."""

    enable: bool
    lower: float
    upper: float
    drop_truncated: bool
    oversample: float
    """Prompts in flight at most, in units of the training batch."""
    max_examined: float
    """Prompts examined per step at most, in units of the training batch."""
    on_exhausted: str
    """``error`` or ``partial``."""

    def __post_init__(self) -> None:
        boolean("prime.filter.enable", self.enable)
        number("prime.filter.lower", self.lower, 0.0, 1.0)
        number("prime.filter.upper", self.upper, 0.0, 1.0)
        if self.lower > self.upper:
            raise SettingsError(
                f"prime.filter.lower={self.lower} is above prime.filter.upper={self.upper}; no prompt could be kept"
            )
        boolean("prime.filter.drop_truncated", self.drop_truncated)
        number("prime.filter.oversample", self.oversample, 1.0)
        number("prime.filter.max_examined", self.max_examined, 1.0)
        if self.max_examined < self.oversample:
            raise SettingsError(
                f"prime.filter.max_examined={self.max_examined} is below prime.filter.oversample={self.oversample}"
            )
        choice("prime.filter.on_exhausted", self.on_exhausted, ON_EXHAUSTED)


@dataclass(frozen=True)
class VerifierSettings:
    """What happens to a rollout that the verifier could not judge (``prime.verifier``)."""

    on_failure: str
    """``drop``, ``zero`` or ``stop``."""
    warn_rate: float
    """Fraction of undecided rollouts in a step above which a warning is logged."""

    def __post_init__(self) -> None:
        choice("prime.verifier.on_failure", self.on_failure, ON_VERIFIER_FAILURE)
        number("prime.verifier.warn_rate", self.warn_rate, 0.0, 1.0)


@dataclass(frozen=True)
class PrimeSettings:
    """The section ``prime`` of the configuration."""

    variant: str
    """One of :data:`prime_ext.config.variant.VARIANTS`."""
    outcome: OutcomeSettings
    process: ProcessSettings
    anchor: AnchorSettings
    steps: StepSettings
    segments: SegmentSettings
    selection: SelectionSettings
    whitening: bool | None
    """None: whiten if the definition of an estimator in use does."""
    label_key: str
    verifier: VerifierSettings
    filter: FilterSettings
    poll_interval: float

    def __post_init__(self) -> None:
        choice("prime.variant", self.variant, VARIANTS)
        if self.whitening is not None:
            boolean("prime.whitening", self.whitening)
        if not isinstance(self.label_key, str) or not self.label_key:
            raise SettingsError(f"prime.label_key={self.label_key!r} must name a key of the reward's extra info")
        number("prime.poll_interval", self.poll_interval, 0.0, open_low=True)
        if self.outcome.coefficient == 0 and self.process.coefficient == 0:
            raise SettingsError("prime.outcome.coefficient and prime.process.coefficient are both 0; one must count")
        relative = self.process.normalization == "outcome_relative" and self.process.coefficient > 0
        if relative and self.outcome.coefficient == 0:
            raise SettingsError("prime.process.normalization=outcome_relative needs prime.outcome.coefficient > 0")
        if self.anchor.enable and self.anchor.fallback and not self.gates:
            raise SettingsError(
                "prime.anchor.fallback=true fills what the reliability gate leaves out, but there is no gate; for the "
                "outcome alone add variant=paper, for it with an anchor set prime.anchor.fallback=false, otherwise "
                "prime.process.reliability_gate=true"
            )
        if self.distils and self.outcome_reads_prm:
            raise SettingsError(
                f"prime.outcome.estimator={self.outcome.estimator} reads the PRM's rewards, which are not taken with "
                f"prime.process.form=kl; choose another estimator or form=sampled"
            )
        if self.one_value_of_both:
            mine, theirs = (self.outcome.discount, self.outcome.trace), (self.process.discount, self.process.trace)
            if mine != theirs:
                raise SettingsError(
                    f"prime.outcome and prime.process share one critic with estimator=gae, but their (discount, trace) "
                    f"are {mine} and {theirs}; make them equal"
                )
            if relative:
                raise SettingsError(
                    "prime.process.normalization=outcome_relative compares two advantages, but with estimator=gae for "
                    "both sources there is one; choose another normalization"
                )

    @property
    def critic_sources(self) -> tuple[str, ...]:
        """The sources whose advantage needs a critic."""
        sources: dict[str, OutcomeSettings | ProcessSettings] = {"outcome": self.outcome}
        if not self.distils:
            sources["process"] = self.process
        return tuple(name for name, part in sources.items() if part.coefficient > 0 and part.estimator == "gae")

    @property
    def distils(self) -> bool:
        """Whether the policy is pulled towards the PRM as a distribution."""
        return self.process.form == "kl" and self.process.coefficient > 0

    @property
    def rewards_tokens(self) -> bool:
        """Whether the PRM's scores of the tokens are read: rewards, values, or the selection of rollouts."""
        pays = self.process.coefficient > 0 and self.process.form == "sampled"
        return pays or self.outcome_reads_prm or self.selection.remove > 0

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
        return self.outcome.coefficient > 0 and self.outcome.estimator in ESTIMATORS_OF_THE_PRM

    @property
    def needs_greedy(self) -> bool:
        """Whether a greedy response to every prompt has to be generated."""
        return self.outcome.coefficient > 0 and self.outcome.estimator == "remax"

    @property
    def needs_probabilities(self) -> bool:
        """Whether the old policy's probabilities of the tokens are read."""
        cuts = self.outcome.estimator == "segment" and self.segments.cuts == "low_probability"
        return cuts or (self.process.target == "policy" and self.rewards_tokens)

    @property
    def needs_steps(self) -> bool:
        """Whether responses are cut into steps."""
        segments = self.outcome.estimator == "segment" and self.segments.cuts == "steps"
        return segments or self.process.granularity == "step" or self.selection.remove > 0

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "PrimeSettings":
        """Build from the resolved section ``prime``. Raises :class:`SettingsError`."""
        if not isinstance(values, Mapping):
            raise SettingsError(f"prime={values!r} must be a section with keys")
        parts = {
            "outcome": build(OutcomeSettings, values.get("outcome", {}), "prime.outcome"),
            "process": ProcessSettings.from_mapping(values.get("process", {})),
            "anchor": build(AnchorSettings, values.get("anchor", {}), "prime.anchor"),
            "steps": build(StepSettings, values.get("steps", {}), "prime.steps"),
            "segments": build(SegmentSettings, values.get("segments", {}), "prime.segments"),
            "selection": build(SelectionSettings, values.get("selection", {}), "prime.selection"),
            "verifier": build(VerifierSettings, values.get("verifier", {}), "prime.verifier"),
            "filter": build(FilterSettings, values.get("filter", {}), "prime.filter"),
        }
        return build(cls, {**values, **parts}, "prime")


# Tokens of a pass without gradients, as a multiple of those of a training pass; and where more make a GPU no busier.
FORWARD_MULTIPLE, FORWARD_LIMIT = 4, 32768


def forward_tokens(prm: Mapping[str, Any]) -> int:
    """Tokens per GPU of a pass without gradients through the PRM, and through its reference: both pack alike.

    Without ``prm.infer_max_token_len_per_gpu`` four times those of a training pass, up to 32,768, where
    ``prm.model.use_fused_kernels`` computes log-probabilities piece by piece; as many as in training otherwise, because
    the logits of all tokens at once would then be the peak of memory.

    Args:
        prm: the section ``prm``.
    """
    if prm["infer_max_token_len_per_gpu"] is not None:
        return int(prm["infer_max_token_len_per_gpu"])
    training = int(prm["max_token_len_per_gpu"])
    if not prm["model"]["use_fused_kernels"]:
        return training
    return max(training, min(FORWARD_MULTIPLE * training, FORWARD_LIMIT))


@dataclass(frozen=True)
class BiasSettings:
    """Trained bias of the PRM's cross-entropy (``prm.bias``)."""

    enable: bool
    lr: float
    init: float | None
    """None: the logit of the mean outcome of the first rollouts that are trained on, within [-4, 4]."""

    def __post_init__(self) -> None:
        boolean("prm.bias.enable", self.enable)
        number("prm.bias.lr", self.lr, 0.0, open_low=True)
        if self.init is not None:
            number("prm.bias.init", self.init, -20.0, 20.0)


@dataclass(frozen=True)
class ReplaySettings:
    """Rollouts of earlier steps in the updates of the PRM (``prm.replay``)."""

    batches: int
    """Updates whose rollouts are remembered; 0: none."""
    ratio: float
    """Replayed rollouts per new one."""
    store: str
    """``disk`` or ``memory``."""

    def __post_init__(self) -> None:
        whole_number("prm.replay.batches", self.batches, 0)
        number("prm.replay.ratio", self.ratio, 0.0, open_low=True)
        choice("prm.replay.store", self.store, REPLAY_STORES)


@dataclass(frozen=True)
class PRMSettings:
    """The section ``prm`` of the configuration, less ``model``, ``engine``, ``optim`` and ``checkpoint``,
    which are verl's own dataclasses."""

    enable: bool
    beta: float
    loss: str
    loss_options: Mapping[str, Any]
    """Options of the loss, see :data:`LOSS_OPTIONS`."""
    bias: BiasSettings
    update_mode: str
    update_freq: int
    """Training steps between two updates of the PRM; between them it only scores."""
    train_on: str
    """``kept`` prompts, or all ``judged`` ones."""
    judged_limit: int | None
    """Rollouts of dropped prompts per step at most, with ``judged``; None for all."""
    replay: ReplaySettings
    epochs: int
    """Passes over the rollouts of a step in an update."""
    trainable_layers: int | float | None
    """Decoder layers that are trained, the last ones, or below 1 their share; None for the whole model."""
    reference: str
    reference_path: str | None
    reference_refresh_freq: int
    """Training steps after which the frozen reference takes over newer weights; 0: never."""
    reference_refresh_source: str
    """Whose weights: one of :data:`REFRESH_SOURCES`."""
    mini_batch_size: int
    """Prompts per optimiser step; times ``rollout.n`` rollouts."""
    use_dynamic_bsz: bool
    micro_batch_size_per_gpu: int | None
    max_token_len_per_gpu: int
    infer_micro_batch_size_per_gpu: int | None
    infer_max_token_len_per_gpu: int | None
    """Of passes without gradients; None for :func:`forward_tokens`."""
    accuracy_freq: int

    def __post_init__(self) -> None:
        boolean("prm.enable", self.enable)
        number("prm.beta", self.beta, 0.0, open_low=True)
        choice("prm.loss", self.loss, LOSSES)
        choice("prm.update_mode", self.update_mode, UPDATE_MODES)
        if self.loss in LOSSES_THAT_NEED_SCORES and self.update_mode == "interleaved":
            raise SettingsError(
                f"prm.loss={self.loss} compares with the PRM's scores before the update, which "
                f"prm.update_mode=interleaved does not have; set prm.update_mode to after, reverse or before"
            )
        self._check_loss_options()
        if self.bias.enable and self.loss not in LOSSES_WITH_BIAS:
            raise SettingsError(
                f"prm.bias.enable=true adds a bias to a cross-entropy ({', '.join(LOSSES_WITH_BIAS)}), which "
                f"prm.loss={self.loss} is not; set prm.bias.enable=false"
            )
        whole_number("prm.update_freq", self.update_freq, 1)
        whole_number("prm.epochs", self.epochs, 1)
        choice("prm.train_on", self.train_on, TRAIN_ON)
        if self.judged_limit is not None:
            whole_number("prm.judged_limit", self.judged_limit, 1)
            if self.train_on == "kept":
                raise SettingsError(
                    f"prm.judged_limit={self.judged_limit} limits the rollouts that prm.train_on=judged adds, and "
                    f"prm.train_on=kept adds none; set it to null"
                )
        self._check_replay()
        if self.train_on == "judged" and self.reference in ("policy", "kl"):
            raise SettingsError(
                f"prm.train_on=judged trains on rollouts that do not go through the policy's passes, from which "
                f"prm.reference={self.reference} takes its log-probabilities; set prm.reference to frozen, base or none"
            )
        if self.trainable_layers is not None:
            if isinstance(self.trainable_layers, float) and self.trainable_layers < 1:
                number("prm.trainable_layers", self.trainable_layers, 0.0, 1.0, open_low=True)
            else:
                whole_number("prm.trainable_layers", self.trainable_layers, 1)
        choice("prm.reference", self.reference, REFERENCES)
        whole_number("prm.reference_refresh_freq", self.reference_refresh_freq, 0)
        choice("prm.reference_refresh_source", self.reference_refresh_source, REFRESH_SOURCES)
        if self.reference_refresh_freq and self.reference != "frozen":
            raise SettingsError(
                f"prm.reference_refresh_freq={self.reference_refresh_freq} refreshes the weights of a frozen "
                f"reference, and prm.reference={self.reference} has none; set it to 0, or prm.reference to frozen"
            )
        whole_number("prm.mini_batch_size", self.mini_batch_size, 1, " of prompts")
        boolean("prm.use_dynamic_bsz", self.use_dynamic_bsz)
        size = "max_token_len_per_gpu" if self.use_dynamic_bsz else "micro_batch_size_per_gpu"
        for key in (size, f"infer_{size}"):
            if key == "infer_max_token_len_per_gpu" and self.infer_max_token_len_per_gpu is None:
                continue
            note = f" (prm.use_dynamic_bsz={str(self.use_dynamic_bsz).lower()})"
            whole_number(f"prm.{key}", getattr(self, key), 1, note)
        whole_number("prm.accuracy_freq", self.accuracy_freq, 0)

    def _check_replay(self) -> None:
        key = f"prm.replay.batches={self.replay.batches}"
        if self.replay.batches and (self.reference in ("policy", "kl") or self.reference_refresh_freq):
            raise SettingsError(
                f"{key} keeps the log-probabilities of a reference that never changes; set prm.reference to frozen, "
                f"base or none, and prm.reference_refresh_freq=0"
            )
        if self.replay.batches and self.loss != "ce":
            raise SettingsError(
                f"{key} draws single rollouts, and prm.loss={self.loss} compares those of a prompt; set prm.loss=ce"
            )

    def _check_loss_options(self) -> None:
        if not isinstance(self.loss_options, Mapping):
            raise SettingsError(f"prm.loss_options={self.loss_options!r} must be a section with keys")
        allowed = LOSS_OPTIONS.get(self.loss, {})
        for name, value in self.loss_options.items():
            key = f"prm.loss_options.{name}"
            if name not in allowed:
                known = f"it has {', '.join(allowed)}" if allowed else "it has none"
                raise SettingsError(f"{key} is not an option of prm.loss={self.loss}; {known}")
            if allowed[name] is bool:
                boolean(key, value)
            elif allowed[name] is str:
                choice(key, value, TIME_WEIGHTS)
            else:
                number(key, value, 0.0)

    @property
    def temperature_of_policy(self) -> bool:
        """Whether the reference was taken at the temperature of the rollouts, so that the PRM has to be too."""
        return self.reference in ("policy", "kl")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "PRMSettings":
        """Build from the resolved section ``prm``. Raises :class:`SettingsError`."""
        if not isinstance(values, Mapping):
            raise SettingsError(f"prm={values!r} must be a section with keys")
        verl_sections = {"model", "engine", "optim", "checkpoint"}
        parts = {
            "bias": build(BiasSettings, values.get("bias", {}), "prm.bias"),
            "replay": build(ReplaySettings, values.get("replay", {}), "prm.replay"),
        }
        return build(cls, {**{k: v for k, v in values.items() if k not in verl_sections}, **parts}, "prm")
