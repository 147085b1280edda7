# SPDX-License-Identifier: Apache-2.0
"""The group ``chain``, and ``prime.outcome``, ``.process``, ``.turns``, ``.anchor`` and ``.steps``.

Nothing here imports torch, so the names of the algorithms are repeated; a test compares them.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any, Literal, get_args

import regex
from pydantic import AfterValidator, Field, StrictInt
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT, Count, Positive, PositiveOrZero, Share, Switch, Text, defaults_of, unread

# Those of prime_ext.algorithms: accumulation, chain_reward, shaping, process_shaping.
StepScore = Literal["none", "sigmoid", "prefix_sigmoid"]
Accumulation = Literal["none", "mean", "geometric", "min"]
SingleStep = Literal["zero", "keep"]
RewardPosition = Literal["last_token", "step_ends", "tokens"]
Shape = Literal["none", "weibull", "gaussian", "released"]
Credit = Literal["sum", "min_form"]
STEP_SCORES, ACCUMULATIONS, SINGLE_STEPS = get_args(StepScore), get_args(Accumulation), get_args(SingleStep)
REWARD_POSITIONS, SHAPES, CREDITS = get_args(RewardPosition), get_args(Shape), get_args(Credit)
SHAPES_OF_THE_SCORE = ("released",)


@dataclass(frozen=True, config=STRICT)
class AccumulationSettings:
    """Settings of the accumulation of step scores into one score (``accumulation``)."""

    mode: Accumulation
    first_weight: Positive
    power: Positive
    single_step: SingleStep
    reward_position: RewardPosition


@dataclass(frozen=True, config=STRICT)
class WeibullSettings:
    """Parameters of the Weibull (``shaping.weibull``)."""

    shape: Positive
    scale: Positive
    constant: Positive | None


@dataclass(frozen=True, config=STRICT)
class GaussianSettings:
    """Parameters of the Gaussian (``shaping.gaussian``)."""

    mean: PositiveOrZero
    std: Positive
    area: Positive | None


@dataclass(frozen=True, config=STRICT)
class ShapingSettings:
    """What scores are multiplied by for the number of steps (``shaping``)."""

    name: Shape
    weibull: WeibullSettings
    gaussian: GaussianSettings

    @property
    def parameters(self) -> dict[str, float | None]:
        """Return the keyword arguments of the selected shape."""
        return asdict(getattr(self, self.name)) if self.name in ("weibull", "gaussian") else {}


def chain_problems(prefix: str, settings: Any) -> Iterable[str]:
    """What does not go together in ``prime.process`` or ``pspo``."""
    accumulation, shape, weibull = settings.accumulation, settings.shaping.name, settings.shaping.weibull
    accumulates = accumulation.mode != "none"
    plain = f"with {prefix}.accumulation.mode=none"
    readings = [
        (("accumulation.first_weight", "accumulation.power", "accumulation.reward_position"), accumulates, plain),
        (("accumulation.single_step",), accumulates or shape != "none", f"{plain} and {prefix}.shaping.name=none"),
    ]
    yield from unread(settings, defaults_of("chain/plain.yaml"), prefix, readings)
    if shape in SHAPES_OF_THE_SCORE and not accumulates:
        yield f"{prefix}.shaping.name={shape} reads the accumulated score; set {prefix}.accumulation.mode=geometric"
    if weibull.shape <= 1 and weibull.constant is None:
        yield f"{prefix}.shaping.weibull.shape={weibull.shape} has no peak; set it above 1, or the constant"
    if accumulates and settings.credit != "sum" and accumulation.reward_position != "step_ends":
        yield (
            f"{prefix}.credit={settings.credit} is for steps paid each for itself (accumulation.mode=none), or for "
            f"reward_position=step_ends; set it to sum"
        )


def chain_arguments(accumulation: AccumulationSettings, shaping: ShapingSettings) -> dict[str, Any]:
    """What ``prime_ext.algorithms.chain_reward.ChainReward`` is made with."""
    values = asdict(accumulation)
    del values["reward_position"]
    return {"accumulation": values.pop("mode"), **values, "shape": shaping.name, "parameters": shaping.parameters}


# ---- the section prime ---------------------------------------------------------------------------------------------

Granularity = Literal["token", "step", "turn", "response"]
Normalization = Literal["batch_max", "return_std", "none"]
# Those of prime_ext.algorithms.estimators. prime.outcome.estimator may also be any other name in verl's registry.
ProcessEstimator = Literal["rloo", "grpo", "rloo_per_token", "turn_rloo", "reinforce", "gae"]
TurnEstimator = Literal["rloo", "grpo", "turn_rloo", "reinforce"]
OUTCOME_ESTIMATORS = ("rloo", "grpo", "turn_rloo", "reinforce", "remax", "gae", "prm_value")
GROUP_ESTIMATORS = ("rloo", "grpo", "rloo_per_token", "turn_rloo")
# Those of prime_ext.step_rm.splitting, and two that need more to be said.
TextSplitter = Literal["auto", "labels", "brackets", "numbered", "paragraphs", "sentences", "pspo"]
TEXT_SPLITTERS = get_args(TextSplitter)


@dataclass(frozen=True, config=STRICT)
class OutcomeSettings:
    """How the outcome reward enters the advantage (``prime.outcome``)."""

    coefficient: PositiveOrZero
    estimator: Text

    @property
    def of_verl(self) -> bool:
        """Whether verl computes this advantage, by an estimator of its registry that is not ours."""
        return self.estimator not in OUTCOME_ESTIMATORS


@dataclass(frozen=True, config=STRICT)
class ProcessSettings:
    """How the PRM's rewards enter the advantage (``prime.process``): docs/explanation/process_rewards.md."""

    scorer: Literal["implicit_prm", "step_scorer"]
    coefficient: PositiveOrZero
    target: Literal["reference", "policy"]
    form: Literal["sampled", "kl"]
    top_k: Count | None
    granularity: Granularity
    step_score: StepScore
    step_score_scale: Positive
    accumulation: AccumulationSettings
    shaping: ShapingSettings
    credit: Credit
    normalization: Normalization
    discount: Share
    estimator: ProcessEstimator
    baseline: Literal["released", "paper"]
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

    def problems(self) -> Iterable[str]:
        """What does not go together."""
        key, granularity, scorer = "prime.process", self.granularity, self.scorer
        of_steps = ("credit", "step_score", "accumulation.mode", "shaping.name")
        of_tokens = ("target", "form", "step_score")
        readings = [
            (of_steps, self.of_steps, f"with {key}.granularity={granularity}, only with step or turn"),
            (of_tokens, scorer == "implicit_prm", f"with {key}.scorer={scorer}, see variant={scorer}"),
        ]
        defaults = defaults_of("prime/prime.yaml")["process"] | defaults_of("chain/plain.yaml")
        yield from unread(self, defaults, key, readings)
        yield from chain_problems(key, self)
        if not self.scores_steps:
            yield from self._problems_of_log_ratios()
        elif granularity not in ("step", "response"):
            yield f"{key}.granularity={granularity}: {key}.scorer=step_scorer scores steps; set step or response"

    def _problems_of_log_ratios(self) -> Iterable[str]:
        """What does not go together with rewards of tokens, whose sums over steps have any sign."""
        key, tokens = "prime.process", self.granularity == "token" and not self.accumulates
        if self.form == "kl" and self.target != "policy":
            yield f"{key}.form=kl is the divergence between policy and PRM; set {key}.target=policy, or form=sampled"
        if self.target == "policy" and not tokens:
            yield f"{key}.target=policy needs {key}.granularity=token and no accumulation; or choose variant=guarded"
        if self.target == "policy" and self.form == "sampled" and self.discount != 0:
            yield f"{key}.discount={self.discount} sums up advantages of {key}.target=policy; set it to 0.0"
        mode, shape = self.accumulation.mode, self.shaping.name
        if self.step_score == "none" and self.of_steps:
            remedy = f"set {key}.step_score to sigmoid or prefix_sigmoid (it is none: sums of any sign)"
            if mode == "geometric":
                yield f"{key}.accumulation.mode={mode} takes logarithms of scores; {remedy}"
            if self.accumulation.power != 1:
                yield f"{key}.accumulation.power={self.accumulation.power} takes powers of scores; {remedy}"
            if shape != "none":
                yield f"{key}.shaping.name={shape}: negative scores would gain by a bad length; {remedy}"


@dataclass(frozen=True, config=STRICT)
class TurnSettings:
    """Rewards of turns that the agent loop reports, and how they become an advantage (``prime.turns``)."""

    coefficient: PositiveOrZero
    field: Literal["tool_rewards", "turn_scores"]
    discount: Share
    estimator: TurnEstimator

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
    delimiters: Annotated[tuple[Text, ...] | tuple[StrictInt, ...], Field(min_length=1)] | None

    def problems(self, section: str) -> Iterable[str]:
        """What does not go together."""
        for key, value in {"pattern": self.pattern, "delimiters": self.delimiters}.items():
            if (value is not None) != (self.splitter == key):
                remedy = "give one" if value is None else "leave it null"
                yield f"{section}.{key}={value!r} with {section}.splitter={self.splitter}: {remedy}"
