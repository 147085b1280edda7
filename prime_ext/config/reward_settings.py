# SPDX-License-Identifier: Apache-2.0
"""The settings of how rewards become advantages: ``prime.outcome``, ``prime.process``, ``prime.steps``,
``prime.segments``, ``prime.selection``.

What the tables of algorithms hold is repeated here, because nothing in this file imports torch; a test compares them.
"""

from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from typing import Any

import regex

from prime_ext.config.chain_settings import (
    STEP_SCORES,
    AccumulationSettings,
    ShapingSettings,
    accumulation_settings,
    check_chain,
    check_credit,
    check_credit_of_chain,
    shaping_settings,
)
from prime_ext.config.checks import SettingsError, boolean, build, choice, number, whole_number

GRANULARITIES = ("token", "step", "response", "prefix_value")
REDISTRIBUTIONS = ("none", "uniform", "last")
# The last one is a running scale on the advantage; the others are those of prime_ext.algorithms.normalization.
NORMALIZATIONS = ("batch_max", "return_std", "prefix_std", "none", "outcome_relative")
BASELINES = ("released", "paper")
TARGETS = ("reference", "policy")
FORMS = ("sampled", "kl")
ANCHORS = ("none", "ema")
# Those of prime_ext.algorithms.estimators. The first compare rollouts of a prompt, and so do those of process rewards.
COMMON_GROUP_ESTIMATORS = ("rloo", "grpo", "grpo_pooled", "dr_grpo", "opo", "gpg", "reinforce_plus_plus_baseline")
COMMON_ESTIMATORS = (*COMMON_GROUP_ESTIMATORS, "reinforce", "reinforce_plus_plus", "gae")
OUTCOME_ESTIMATORS = (*COMMON_ESTIMATORS, "remax", "prm_value", "segment")
PROCESS_ESTIMATORS = (*COMMON_ESTIMATORS, "rloo_per_token", "masked_step", "position_mean")
GROUP_ESTIMATORS = (*COMMON_GROUP_ESTIMATORS, "rloo_per_token", "masked_step")
ESTIMATORS_OF_THE_PRM = ("prm_value", "segment")
ESTIMATORS_WITHOUT_DISCOUNT = ("remax", "segment", "masked_step")
SEGMENT_CUTS = ("steps", "low_probability")
# Those of prime_ext.step_rm.splitting.
TEXT_SPLITTERS = ("auto", "labels", "brackets", "numbered", "paragraphs", "lines", "sentences", "pspo")
SPLITTERS = (*TEXT_SPLITTERS, "pattern", "delimiters")


def estimate(prefix: str, estimator: str, allowed: tuple[str, ...], discount: float, trace: float) -> None:
    """How one source becomes an advantage: three keys that the outcome and the process rewards share."""
    choice(f"{prefix}.estimator", estimator, allowed)
    number(f"{prefix}.discount", discount, 0.0, 1.0)
    number(f"{prefix}.trace", trace, 0.0, 1.0)
    if trace != 1.0 and estimator != "gae":
        raise SettingsError(f"{prefix}.trace={trace} is read by {prefix}.estimator=gae only; leave it at 1.0")
    if discount != 1.0 and estimator in ESTIMATORS_WITHOUT_DISCOUNT:
        raise SettingsError(f"{prefix}.discount={discount}: {prefix}.estimator={estimator} has none; leave it at 1.0")


@dataclass(frozen=True)
class OutcomeSettings:
    """How the outcome reward enters the advantage (``prime.outcome``)."""

    coefficient: float
    """Weight in the sum of sources, before whitening."""
    discount: float
    """Discount of the outcome's return."""
    estimator: str
    """How rewards become an advantage; one of :data:`OUTCOME_ESTIMATORS`."""
    trace: float
    """Lambda of ``gae``."""

    def __post_init__(self) -> None:
        estimate("prime.outcome", self.estimator, OUTCOME_ESTIMATORS, self.discount, self.trace)
        number("prime.outcome.coefficient", self.coefficient, 0.0)
        # A discount of 0 would leave the outcome to the last token alone.
        number("prime.outcome.discount", self.discount, 0.0, 1.0, open_low=True)


@dataclass(frozen=True)
class ProcessSettings:
    """How the PRM's rewards enter the advantage (``prime.process``): the pipeline of ``docs/process_rewards.md``."""

    coefficient: float
    """Weight in the sum of sources, before whitening; with ``form=kl`` of the divergence in the policy's loss."""
    target: str
    """What the PRM's log-probabilities are measured against; one of :data:`TARGETS`."""
    form: str
    """How the policy learns of them; one of :data:`FORMS`."""
    top_k: int | None
    """Of ``form=kl``: tokens of the vocabulary that are compared; None: all."""
    clip: float | None
    """Largest absolute advantage, before the coefficient."""
    granularity: str
    """What receives a reward; one of :data:`GRANULARITIES`."""
    reward_lambda: float
    """Rewards become lambda-weighted sums of what follows them; 0 leaves them alone."""
    step_score: str
    """How the sum over a step becomes its score; one of :data:`STEP_SCORES`."""
    step_score_scale: float
    """Factor on the sum before the sigmoid."""
    accumulation: AccumulationSettings
    """How the scores of the steps become one reward of the response."""
    shaping: ShapingSettings
    """What it is multiplied by for the number of steps."""
    credit: str
    """What a step's score pays; one of :data:`CREDITS`."""
    credit_temperature: float
    """Of ``min_form``."""
    credit_threshold: float | None
    """Of ``clip`` and ``clip_delta``, in units of the score of a step."""
    redistribution: str
    """How the rewards of a response are made to sum to zero; one of :data:`REDISTRIBUTIONS`."""
    normalization: str
    """One of :data:`NORMALIZATIONS`."""
    relative_share: float
    """Of ``outcome_relative``: spread of the process advantage over that of the outcome."""
    relative_decay: float
    """Of ``outcome_relative``: weight of the past in the running means."""
    relative_limit: float
    """Of ``outcome_relative``: the largest factor."""
    noise_per_token: float | None
    """Standard deviation of the rounding noise of a token's log-ratio; None: by the dtype of the PRM's passes."""
    discount: float
    """Discount of the process return; 0 takes the rewards themselves as the return."""
    estimator: str
    """How rewards become an advantage; one of :data:`PROCESS_ESTIMATORS`."""
    trace: float
    """Lambda of ``gae``."""
    baseline: str
    """Form of the leave-one-out baseline of ``rloo``: ``released`` or ``paper``."""
    warm_up_steps: int
    """Training steps in which the PRM learns and its rewards do not count yet."""
    reliability_gate: bool | None
    """Scale the rewards by how well the PRM orders responses it had not trained on. None: where both sources count."""
    gate_decay: float
    """Weight of the past in the gate's running pair accuracy."""
    gate_start: float
    """The running pair accuracy before the first step."""

    def __post_init__(self) -> None:
        number("prime.process.coefficient", self.coefficient, 0.0)
        estimate("prime.process", self.estimator, PROCESS_ESTIMATORS, self.discount, self.trace)
        whole_number("prime.process.warm_up_steps", self.warm_up_steps, 0)
        choice("prime.process.normalization", self.normalization, NORMALIZATIONS)
        number("prime.process.relative_share", self.relative_share, 0.0, open_low=True)
        number("prime.process.relative_decay", self.relative_decay, 0.0, 1.0)
        number("prime.process.relative_limit", self.relative_limit, 0.0, open_low=True)
        if self.noise_per_token is not None:
            number("prime.process.noise_per_token", self.noise_per_token, 0.0)
        choice("prime.process.baseline", self.baseline, BASELINES)
        if self.reliability_gate is not None:
            boolean("prime.process.reliability_gate", self.reliability_gate)
        number("prime.process.gate_decay", self.gate_decay, 0.0, 1.0)
        number("prime.process.gate_start", self.gate_start, 0.0, 1.0)
        if self.clip is not None:
            number("prime.process.clip", self.clip, 0.0, open_low=True)
        self._check_target()
        self._check_rewards()
        _check_steps_into_rewards(self)

    @property
    def accumulates(self) -> bool:
        """Whether a response has one reward for all of its steps."""
        return self.accumulation.mode != "none"

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "ProcessSettings":
        """Build from the resolved section ``prime.process``. Raises :class:`SettingsError`."""
        if not isinstance(values, Mapping):
            raise SettingsError(f"prime.process={values!r} must be a section with keys")
        parts = {
            "accumulation": accumulation_settings(values.get("accumulation", {}), "prime.process.accumulation"),
            "shaping": shaping_settings(values.get("shaping", {}), "prime.process.shaping"),
        }
        return build(cls, {**values, **parts}, "prime.process")

    def _check_target(self) -> None:
        choice("prime.process.target", self.target, TARGETS)
        choice("prime.process.form", self.form, FORMS)
        if self.top_k is not None:
            whole_number("prime.process.top_k", self.top_k, 1)
        if self.form == "kl" and self.target != "policy":
            raise SettingsError(
                f"prime.process.form=kl is the divergence between policy and PRM, but prime.process.target is "
                f"{self.target}; set it to policy, or the form to sampled"
            )
        if self.target != "policy":
            return
        if self.granularity != "token" or self.accumulates:
            raise SettingsError(
                f"prime.process.target=policy compares token by token; set prime.process.granularity=token (it is "
                f"{self.granularity}) and no accumulation, or choose variant=guarded, whose target is the reference"
            )
        if self.form == "sampled" and self.discount != 0.0:
            raise SettingsError(
                f"prime.process.discount={self.discount}: log-probabilities measured against the policy are advantages "
                f"already and are not summed up; set it to 0.0, or prime.process.target=reference"
            )

    def _check_rewards(self) -> None:
        choice("prime.process.granularity", self.granularity, GRANULARITIES)
        number("prime.process.reward_lambda", self.reward_lambda, 0.0, 1.0)
        check_credit("prime.process", self.credit, self.credit_temperature, self.credit_threshold)
        choice("prime.process.redistribution", self.redistribution, REDISTRIBUTIONS)
        if self.credit != "sum" and self.granularity != "step":
            raise SettingsError(
                f"prime.process.credit={self.credit} is about steps; set prime.process.granularity=step (it is "
                f"{self.granularity}), or the credit to sum"
            )
        if self.credit == "strict_min" and self.discount != 1.0:
            raise SettingsError(
                f"prime.process.discount={self.discount}: the rewards of prime.process.credit=strict_min add up to the "
                f"smallest score ahead only without discount; set it to 1.0"
            )
        if self.reward_lambda > 0.0 and self.granularity not in ("token", "prefix_value"):
            raise SettingsError(
                f"prime.process.reward_lambda={self.reward_lambda} is about tokens; set prime.process.granularity to "
                f"token or prefix_value (it is {self.granularity}), or the lambda to 0.0"
            )
        if self.reward_lambda > 0.0 and self.estimator == "gae":
            raise SettingsError(
                f"prime.process.reward_lambda={self.reward_lambda} and prime.process.estimator=gae would apply a "
                f"lambda twice; set prime.process.trace instead and prime.process.reward_lambda to 0.0"
            )
        if self.redistribution != "none" and self.granularity == "response":
            raise SettingsError(
                f"prime.process.redistribution={self.redistribution} leaves nothing of the single reward that "
                f"prime.process.granularity=response pays; set it to none"
            )


@dataclass(frozen=True)
class AnchorSettings:
    """A pull of the policy towards a running average of its own weights (``prime.anchor``)."""

    kind: str
    """One of :data:`ANCHORS`."""
    coefficient: float
    """Weight of the divergence in the policy's loss."""
    decay: float
    """What stays of the average in a step."""
    fallback: bool
    """Count only as far as the reliability gate is closed."""

    def __post_init__(self) -> None:
        choice("prime.anchor.kind", self.kind, ANCHORS)
        number("prime.anchor.coefficient", self.coefficient, 0.0, open_low=True)
        number("prime.anchor.decay", self.decay, 0.0, 1.0)
        boolean("prime.anchor.fallback", self.fallback)

    @property
    def enable(self) -> bool:
        """Whether there is such a pull."""
        return self.kind != "none"


@dataclass(frozen=True)
class StepSettings:
    """Where the steps of a response are (``prime.steps``, ``pspo.steps``)."""

    splitter: str
    """One of :data:`SPLITTERS`."""
    pattern: str | None
    """Of ``pattern``: a regular expression that matches where a step begins."""
    delimiters: tuple[str, ...] | tuple[int, ...] | None
    """Of ``delimiters``: strings, or token ids, behind which a step ends."""
    section: InitVar[str] = "prime.steps"
    """Name of the section, for messages."""

    def __post_init__(self, section: str) -> None:
        choice(f"{section}.splitter", self.splitter, SPLITTERS)
        for key in ("pattern", "delimiters"):
            given = getattr(self, key) is not None
            if given != (self.splitter == key):
                wanted = f"{section}.splitter={key} needs it" if not given else "leave it null"
                raise SettingsError(
                    f"{section}.{key}={getattr(self, key)!r} with {section}.splitter={self.splitter}: {wanted}"
                )
        if self.pattern is not None:
            try:
                regex.compile(self.pattern)
            except (regex.error, TypeError) as error:
                problem = f"{section}.pattern={self.pattern!r} is no regular expression: {error}"
                raise SettingsError(problem) from error
        if self.delimiters is not None:
            kinds = {type(value) for value in self.delimiters} if isinstance(self.delimiters, list | tuple) else set()
            if kinds not in ({str}, {int}) or "" in self.delimiters:
                raise SettingsError(
                    f"{section}.delimiters={self.delimiters!r} must be a list of strings, or a list of token ids"
                )
            object.__setattr__(self, "delimiters", tuple(self.delimiters))


@dataclass(frozen=True)
class SegmentSettings:
    """Where the segments of ``prime.outcome.estimator=segment`` begin (``prime.segments``)."""

    cuts: str
    """One of :data:`SEGMENT_CUTS`."""
    threshold: float
    """Of ``low_probability``: the policy is unsure of tokens below this probability."""
    every: int
    """Of ``low_probability``: one cut for so many such tokens."""

    def __post_init__(self) -> None:
        choice("prime.segments.cuts", self.cuts, SEGMENT_CUTS)
        number("prime.segments.threshold", self.threshold, 0.0, 1.0, open_low=True)
        whole_number("prime.segments.every", self.every, 1)


@dataclass(frozen=True)
class SelectionSettings:
    """Which rollouts of a prompt the policy is not trained on (``prime.selection``, PROF)."""

    remove: int
    """Rollouts to drop per prompt; 0 keeps all."""
    length_penalty: float
    """Taken from the consistency of responses with too few or too many steps."""
    fewest_steps: int
    """Steps below which the penalty applies."""
    most_steps: int
    """Steps above which the penalty applies."""

    def __post_init__(self) -> None:
        whole_number("prime.selection.remove", self.remove, 0)
        number("prime.selection.length_penalty", self.length_penalty, 0.0)
        whole_number("prime.selection.fewest_steps", self.fewest_steps, 0)
        whole_number("prime.selection.most_steps", self.most_steps, self.fewest_steps)


def _check_steps_into_rewards(process: ProcessSettings) -> None:
    """Whether chains of implicit step rewards go with the other choices. Raises :class:`SettingsError`."""
    choice("prime.process.step_score", process.step_score, STEP_SCORES)
    number("prime.process.step_score_scale", process.step_score_scale, 0.0, open_low=True)
    mode, place = process.accumulation.mode, process.accumulation.place
    about_steps = {"step_score": process.step_score, "accumulation.mode": mode, "shaping.name": process.shaping.name}
    for key, value in about_steps.items():
        if value != "none" and process.granularity != "step":
            raise SettingsError(
                f"prime.process.{key}={value} is about steps; set prime.process.granularity=step (it is "
                f"{process.granularity}), or prime.process.{key} to none"
            )
    any_sign = "set prime.process.step_score to sigmoid or prefix_sigmoid (it is none: sums of any sign)"
    check_chain(
        "prime.process", process.accumulation, process.shaping, any_sign if process.step_score == "none" else None
    )
    check_credit_of_chain("prime.process", process.credit, process.accumulation)
    if mode != "none" and process.redistribution != "none" and place == "last_token":
        raise SettingsError(
            f"prime.process.redistribution={process.redistribution} leaves nothing of the single reward that "
            f"prime.process.accumulation.place=last_token pays; set it to none"
        )
