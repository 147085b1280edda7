# SPDX-License-Identifier: Apache-2.0
"""The settings of how rewards become advantages: ``prime.outcome``, ``prime.process``, ``prime.turns``,
``prime.steps``, ``prime.segments``, ``prime.selection``.

What the tables of algorithms hold is repeated here, because nothing in this file imports torch; a test compares them.
"""

from collections.abc import Iterable
from typing import Annotated, Literal, get_args

import regex
from pydantic import AfterValidator, Field, StrictInt
from pydantic.dataclasses import dataclass

from prime_ext.config.chain_settings import (
    ACCUMULATIONS_OF_POSITIVE_SCORES,
    AccumulationSettings,
    Credit,
    ShapingSettings,
    StepScore,
    chain_problems,
)
from prime_ext.config.checks import (
    STRICT,
    Count,
    CountOrZero,
    Number,
    Positive,
    PositiveOrZero,
    PositiveShare,
    Reading,
    Share,
    Switch,
    Text,
    defaults_of,
    unread,
)

Granularity = Literal["token", "step", "turn", "response", "prefix_value"]
# The last one is a running scale on the advantage; the others are those of prime_ext.algorithms.normalization.
Normalization = Literal["batch_max", "return_std", "prefix_std", "none", "outcome_relative"]
GRANULARITIES, NORMALIZATIONS = get_args(Granularity), get_args(Normalization)
# Those of prime_ext.algorithms.estimators. The first compare rollouts of a prompt, and so do those of process rewards.
StateEstimator = Literal["gigpo", "gigpo_mean"]
TurnBasedEstimator = Literal["turn_rloo", "turn_pooled", StateEstimator]
CommonGroupEstimator = Literal[
    "rloo", "grpo", "grpo_pooled", "dr_grpo", "opo", "gpg", "reinforce_plus_plus_baseline", TurnBasedEstimator
]
TurnEstimator = Literal[CommonGroupEstimator, "reinforce", "reinforce_plus_plus"]
CommonEstimator = Literal[TurnEstimator, "gae"]
OutcomeEstimator = Literal[CommonEstimator, "remax", "prm_value", "segment"]
ProcessEstimator = Literal[CommonEstimator, "rloo_per_token", "masked_step", "position_mean"]
OUTCOME_ESTIMATORS, PROCESS_ESTIMATORS = get_args(OutcomeEstimator), get_args(ProcessEstimator)
TURN_ESTIMATORS, TURN_BASED_ESTIMATORS = get_args(TurnEstimator), get_args(TurnBasedEstimator)
STATE_ESTIMATORS = get_args(StateEstimator)
GROUP_ESTIMATORS = (*get_args(CommonGroupEstimator), "rloo_per_token", "masked_step")
ESTIMATORS_OF_THE_PRM = ("prm_value", "segment")
ESTIMATORS_WITHOUT_DISCOUNT = ("remax", "segment", "masked_step")
# Those of prime_ext.step_rm.splitting, and two that need more to be said.
TextSplitter = Literal["auto", "labels", "brackets", "numbered", "paragraphs", "sentences", "pspo"]
TEXT_SPLITTERS = get_args(TextSplitter)


def estimator_readings(section: str, settings: "OutcomeSettings | ProcessSettings") -> list[Reading]:
    """Where the keys of how one source becomes an advantage are read, by their names below ``prime``."""
    where = f"with prime.{section}.estimator={settings.estimator}"
    has_discount = settings.estimator not in ESTIMATORS_WITHOUT_DISCOUNT
    return [
        ([f"{section}.gae_lambda"], settings.estimator == "gae", where),
        ([f"{section}.discount"], has_discount, where),
    ]


@dataclass(frozen=True, config=STRICT)
class OutcomeSettings:
    """How the outcome reward enters the advantage (``prime.outcome``)."""

    coefficient: PositiveOrZero
    discount: PositiveShare
    estimator: OutcomeEstimator
    gae_lambda: Share


@dataclass(frozen=True, config=STRICT)
class AnswerSettings:
    """How the gold answer is asked for after a step (``prime.process.answer``)."""

    template: Text
    per_token: Switch
    most: Count

    @property
    def parts(self) -> list[str]:
        """What stands before the gold answer, and behind it."""
        return self.template.split("{gold}")

    def problems(self, key: str) -> Iterable[str]:
        """``{gold}`` stands in it once."""
        if len(self.parts) != 2:
            yield f"{key}.template must have {{gold}} once, the place of the gold answer"


@dataclass(frozen=True, config=STRICT)
class ProcessSettings:
    """How the PRM's rewards enter the advantage (``prime.process``): docs/explanation/process_rewards.md."""

    scorer: Literal["implicit_prm", "step_scorer", "answer_likelihood"]
    answer: AnswerSettings
    coefficient: PositiveOrZero
    target: Literal["reference", "policy"]
    form: Literal["sampled", "kl", "sign_preserving"]
    top_k: Count | None
    clip: Positive | None
    granularity: Granularity
    reward_lambda: Share
    step_score: StepScore
    step_score_scale: Positive
    accumulation: AccumulationSettings
    shaping: ShapingSettings
    credit: Credit
    credit_temperature: Positive
    credit_threshold: Number | None
    redistribution: Literal["none", "uniform", "last"]
    normalization: Normalization
    relative_share: Positive
    relative_decay: Share
    relative_limit: Positive
    noise_per_token: PositiveOrZero | None
    discount: Share
    estimator: ProcessEstimator
    gae_lambda: Share
    baseline: Literal["released", "paper"]
    warm_up_steps: CountOrZero
    decay_steps: Count | None
    reliability_gate: Switch | None
    gate_decay: Share
    gate_start: Share

    @property
    def accumulates(self) -> bool:
        """Whether a response has one reward for all of its steps."""
        return self.accumulation.mode != "none"

    @property
    def scores_steps(self) -> bool:
        """Whether a step scorer gives the rewards, and not the implicit PRM."""
        return self.scorer == "step_scorer"

    @property
    def of_steps(self) -> bool:
        """Whether steps are paid; those of the granularity ``turn`` are turns."""
        return self.granularity in ("step", "turn")

    def _readings(self) -> list[Reading]:
        """What keys are read with, beside those of the estimator and of the group ``chain``."""
        key, place, scorer = "prime.process", self.granularity, self.scorer
        of_steps = ("credit", "step_score", "accumulation.mode", "shaping.name")
        of_tokens = ("target", "form", "step_score", "noise_per_token")
        return [
            (of_steps, self.of_steps, f"with {key}.granularity={place}, only with step or turn"),
            (of_tokens, scorer == "implicit_prm", f"with {key}.scorer={scorer}, see variant={scorer}"),
            (["discount"], self.credit != "strict_min", f"with {key}.credit=strict_min"),
        ]

    def problems(self) -> Iterable[str]:
        """What does not go together."""
        key, granularity, position = "prime.process", self.granularity, self.accumulation.reward_position
        defaults = defaults_of("prime/prime.yaml")["process"] | defaults_of("chain/plain.yaml")
        yield from self.answer.problems(f"{key}.answer")
        yield from unread(self, defaults, key, self._readings())
        yield from chain_problems(key, self)
        if self.scorer == "implicit_prm":
            yield from self._problems_of_log_ratios()
        places = ("step", "response") if self.scores_steps else ("step", "turn", "response")
        if self.scorer != "implicit_prm" and granularity not in places:
            yield f"{key}.granularity={granularity}: {key}.scorer={self.scorer} scores steps; set {' or '.join(places)}"
        if not self.scores_steps:
            yield from self._problems_of_signed_scores()
        if self.reward_lambda > 0 and granularity not in ("token", "prefix_value"):
            yield f"{key}.reward_lambda={self.reward_lambda} is about tokens; set it to 0.0, or {key}.granularity=token"
        if self.reward_lambda > 0 and self.estimator == "gae":
            yield f"{key}.reward_lambda={self.reward_lambda} comes on top of {key}.estimator=gae; set it to 0.0"
        one_reward = granularity == "response" or (self.accumulates and position == "last_token")
        if self.redistribution != "none" and one_reward:
            yield f"{key}.redistribution={self.redistribution} leaves nothing of one reward of a response; set none"

    def _problems_of_log_ratios(self) -> Iterable[str]:
        """What does not go together with the implicit PRM's rewards of tokens."""
        key, tokens = "prime.process", self.granularity == "token" and not self.accumulates
        if self.form == "kl" and self.target != "policy":
            yield f"{key}.form=kl is the divergence between policy and PRM; set {key}.target=policy, or form=sampled"
        if self.target == "policy" and not tokens:
            yield f"{key}.target=policy needs {key}.granularity=token and no accumulation; or choose variant=guarded"
        if self.target == "policy" and self.form == "sampled" and self.discount != 0:
            yield f"{key}.discount={self.discount} sums up advantages of {key}.target=policy; set it to 0.0"
        if self.form != "sign_preserving":
            return
        if not tokens:
            yield f"{key}.form=sign_preserving scales the advantage of each token; set {key}.granularity=token"
        if self.coefficient > 1:
            yield f"{key}.coefficient={self.coefficient} is above 1; with {key}.form=sign_preserving it is a share"
        if self.clip is None or self.clip >= 1:
            yield f"{key}.clip={self.clip} must be in (0, 1) with {key}.form=sign_preserving, such as 0.2"

    def _problems_of_signed_scores(self) -> Iterable[str]:
        """What does not go together with scores of steps that are no probabilities."""
        key, mode, shape = "prime.process", self.accumulation.mode, self.shaping.name
        if self.step_score == "none" and self.of_steps:
            remedy = f"set {key}.step_score to sigmoid or prefix_sigmoid (it is none: sums of any sign)"
            if mode in ACCUMULATIONS_OF_POSITIVE_SCORES:
                yield f"{key}.accumulation.mode={mode} takes logarithms of scores; {remedy}"
            if self.accumulation.power != 1:
                yield f"{key}.accumulation.power={self.accumulation.power} takes powers of scores; {remedy}"
            if shape != "none":
                yield f"{key}.shaping.name={shape}: negative scores would gain by a bad length; {remedy}"


@dataclass(frozen=True, config=STRICT)
class TurnSettings:
    """Rewards of turns that the agent loop reports, and how turns are compared (``prime.turns``)."""

    coefficient: PositiveOrZero
    field: Literal["tool_rewards", "turn_scores"]
    discount: Share
    estimator: TurnEstimator
    state: Literal["history", "observation"]
    step_weight: PositiveOrZero

    @property
    def pays(self) -> bool:
        """Whether these rewards are a source."""
        return self.coefficient > 0


@dataclass(frozen=True, config=STRICT)
class AnchorSettings:
    """A pull of the policy towards a running average of its own weights (``prime.anchor``)."""

    kind: Literal["none", "ema"]
    coefficient: Positive
    decay: Share
    fallback: Switch

    @property
    def enable(self) -> bool:
        """Whether there is such a pull."""
        return self.kind != "none"


def _compiles(pattern: str) -> str:
    try:
        regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    return pattern


@dataclass(frozen=True, config=STRICT)
class StepSettings:
    """Where the steps of a response are (``prime.steps``, ``pspo.steps``)."""

    splitter: Literal[TextSplitter, "pattern", "delimiters"]
    pattern: Annotated[Text, AfterValidator(_compiles)] | None
    delimiters: Annotated[
        Annotated[tuple[Text, ...] | tuple[StrictInt, ...], Field(min_length=1)] | None,
        Field(description="a list of strings, or a list of token ids"),
    ]

    def problems(self, section: str) -> Iterable[str]:
        """``pattern`` and ``delimiters`` are there where they are read, and only there."""
        for key, value in {"pattern": self.pattern, "delimiters": self.delimiters}.items():
            if (value is not None) != (self.splitter == key):
                remedy = "give one" if value is None else "leave it null"
                yield f"{section}.{key}={value!r} with {section}.splitter={self.splitter}: {remedy}"


@dataclass(frozen=True, config=STRICT)
class SegmentSettings:
    """Where the segments of ``prime.outcome.estimator=segment`` begin (``prime.segments``)."""

    cuts: Literal["steps", "low_probability"]
    threshold: PositiveShare
    every: Count


@dataclass(frozen=True, config=STRICT)
class SelectionSettings:
    """Which rollouts of a prompt the policy is not trained on (``prime.selection``, PROF)."""

    remove: CountOrZero
    length_penalty: PositiveOrZero
    fewest_steps: CountOrZero
    most_steps: CountOrZero
