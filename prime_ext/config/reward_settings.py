# SPDX-License-Identifier: Apache-2.0
"""The group ``chain``, and ``prime.outcome``, ``.process``, ``.turns``, ``.anchor`` and ``.steps``.

Nothing here imports torch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

import regex
from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, Tag
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import (
    STRICT,
    EscapedText,
    Positive,
    PositiveOrZero,
    Share,
    Switch,
    Text,
    choose_by,
    limit_to,
)
from prime_ext.names import (
    Accumulation,
    Credit,
    RewardPosition,
    SingleStep,
    StepScoreName,
    TextSplitter,
    list_estimators,
    list_plain_shapes,
)


@dataclass(frozen=True, config=STRICT)
class AccumulationSettings:
    """Settings for combining the scores of steps into one score (``accumulation``)."""

    mode: Accumulation
    first_weight: Positive
    power: Positive
    single_step: SingleStep
    reward_position: RewardPosition


@dataclass(frozen=True, config=STRICT)
class WeibullSettings:
    """Parameters of the Weibull."""

    name: Literal["weibull"]
    shape: Positive
    scale: Positive
    constant: Positive | None


@dataclass(frozen=True, config=STRICT)
class GaussianSettings:
    """Parameters of the Gaussian."""

    name: Literal["gaussian"]
    mean: PositiveOrZero
    std: Positive
    area: Positive


@dataclass(frozen=True, config=STRICT)
class NamedShapeSettings:
    """A shape without parameters, of PSPO's released code or of a module of the user's."""

    name: Annotated[Text, limit_to(list_plain_shapes)]


# Factors on scores for the number of steps (``shaping``).
ShapingSettings = Annotated[
    Annotated[WeibullSettings, Tag("<weibull>")]
    | Annotated[GaussianSettings, Tag("<gaussian>")]
    | Annotated[NamedShapeSettings, Tag("<also>")],
    choose_by("name", "chain@SECTION=pspo_wrs, cn_ppo, pspo_released or plain", list_plain_shapes),
]


def chain_problems(prefix: str, settings: Any) -> Iterable[str]:
    """Yield the conflicts between settings of ``prime.process`` or ``pspo``."""
    accumulation = settings.accumulation
    shaping = settings.shaping
    if shaping is not None and shaping.name == "released" and accumulation is None:
        yield (
            f"{prefix}.shaping.name=released reads the accumulated score; choose"
            f" chain@{prefix}=pspo_released"
        )
    if isinstance(shaping, WeibullSettings) and shaping.shape <= 1 and shaping.constant is None:
        yield f"{prefix}.shaping.shape={shaping.shape} has no peak; set it above 1, or the constant"
    if (
        accumulation is not None
        and settings.credit != "sum"
        and accumulation.reward_position != "step_ends"
    ):
        yield (
            f"{prefix}.credit={settings.credit} is for steps paid each for itself"
            " (accumulation=null), or for reward_position=step_ends; set it to sum"
        )


def zeroes_single_steps(settings: Any) -> bool:
    """Return whether a chain of ``prime.process`` or ``pspo`` gives 0 to a response of one step."""
    if settings.accumulation is None:
        return settings.shaping is not None
    return settings.accumulation.single_step == "zero"


def chain_arguments(accumulation: AccumulationSettings | None, shaping: Any) -> dict[str, Any]:
    """Return the arguments of ``prime_ext.algorithms.chain_reward.ChainReward``."""
    arguments: dict[str, Any] = {"accumulation": "none"}
    if accumulation is not None:
        arguments = asdict(accumulation)
        arguments["accumulation"] = arguments.pop("mode")
        del arguments["reward_position"]
    if shaping is None:
        return arguments
    parameters = asdict(shaping)
    return {**arguments, "shape": parameters.pop("name"), "parameters": parameters}


# ---- the section prime ---------------------------------------------------------------------------

Normalization = Literal["batch_max", "none"]
ProcessEstimator = Annotated[Text, limit_to(partial(list_estimators, "process"))]
TurnEstimator = Annotated[Text, limit_to(partial(list_estimators, "turns"))]


@dataclass(frozen=True, config=STRICT)
class OutcomeSettings:
    """Settings of the outcome reward's share of the advantage (``prime.outcome``).

    The estimator may also be any name in verl's registry.
    """

    coefficient: PositiveOrZero
    estimator: Text

    @property
    def of_verl(self) -> bool:
        """Return whether verl computes this advantage, by its own registered estimator."""
        return self.estimator not in list_estimators("outcome")


@dataclass(frozen=True, config=STRICT)
class GateSettings:
    """The reliability gate (``prime.process.gate``)."""

    decay: Share
    start: Share


@dataclass(frozen=True, config=STRICT)
class KLSettings:
    """PRIME-D: the divergence of policy and PRM in the policy's loss (``prime/process=kl``)."""

    form: Literal["kl"]
    coefficient: Positive
    gate: GateSettings | None


@dataclass(frozen=True, config=STRICT)
class _Paid:
    coefficient: Positive
    normalization: Normalization
    discount: Share
    estimator: ProcessEstimator
    gate: GateSettings | None


@dataclass(frozen=True, config=STRICT)
class TokenSettings(_Paid):
    """PRIME: rewards of tokens (``prime/process=tokens``)."""

    form: Literal["tokens"]
    target: Literal["reference", "policy"]

    def problems(self) -> Iterable[str]:
        """Yield the conflicts between settings."""
        if self.target == "policy" and self.discount != 0:
            key = "prime.process"
            yield (
                f"{key}.discount={self.discount} sums up advantages of {key}.target=policy; set it"
                " to 0.0"
            )


@dataclass(frozen=True, config=STRICT)
class _PaidSteps(_Paid):
    accumulation: AccumulationSettings | None
    shaping: ShapingSettings | None
    credit: Credit


@dataclass(frozen=True, config=STRICT)
class ScoredStepSettings(_PaidSteps):
    """Scores of a step reward model as rewards (``prime/process=step_scorer``)."""

    form: Literal["step_scorer"]
    granularity: Literal["step", "response"]

    @property
    def zeroes_single_steps(self) -> bool:
        """Return whether a response of one step gets no reward for it."""
        return zeroes_single_steps(self)

    def problems(self) -> Iterable[str]:
        """Yield the conflicts between settings."""
        return chain_problems("prime.process", self)


@dataclass(frozen=True, config=STRICT)
class StepRewardSettings(_PaidSteps):
    """The PRM's token rewards, paid at step, turn or response ends (``prime/process=steps``)."""

    form: Literal["steps"]
    granularity: Literal["step", "turn", "response"]
    step_score: StepScoreName
    step_score_scale: Positive

    def problems(self) -> Iterable[str]:
        """Yield the conflicts between settings; sums of log-ratios have any sign."""
        yield from chain_problems("prime.process", self)
        if self.step_score != "none" or self.granularity == "response":
            return
        key = "prime.process"
        remedy = f"set {key}.step_score to sigmoid (it is none: sums of any sign)"
        if self.accumulation is not None and self.accumulation.mode == "geometric":
            yield f"{key}.accumulation.mode=geometric takes logarithms of scores; {remedy}"
        if self.accumulation is not None and self.accumulation.power != 1:
            yield (
                f"{key}.accumulation.power={self.accumulation.power} takes powers of scores;"
                f" {remedy}"
            )
        if self.shaping is not None:
            yield (
                f"{key}.shaping.name={self.shaping.name}: negative scores would gain by a bad"
                f" length; {remedy}"
            )


# How the PRM's rewards enter the advantage or the loss (``prime.process``):
# docs/explanation/process_rewards.md.
ProcessSettings = Annotated[
    Annotated[KLSettings, Tag("<kl>")]
    | Annotated[TokenSettings, Tag("<tokens>")]
    | Annotated[StepRewardSettings, Tag("<steps>")]
    | Annotated[ScoredStepSettings, Tag("<step_scorer>")],
    choose_by(
        "form",
        "prime/process=kl, tokens, steps or step_scorer; variant=rloo has no process rewards",
    ),
]


@dataclass(frozen=True, config=STRICT)
class TurnSettings:
    """Rewards of turns that the agent loop reports, and their estimator (``prime.turns``)."""

    coefficient: Positive
    field: Literal["tool_rewards", "turn_scores"]
    discount: Share
    estimator: TurnEstimator


@dataclass(frozen=True, config=STRICT)
class AnchorSettings:
    """A pull of the policy toward a running average of its own weights (``prime.anchor``)."""

    coefficient: Positive
    decay: Share
    fallback: Switch


def _compiles(pattern: str) -> str:
    try:
        regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    return pattern


@dataclass(frozen=True, config=STRICT)
class StepSettings:
    """Rule that finds steps: a splitter's name, a pattern or delimiters; one of them is set."""

    splitter: TextSplitter | None = None
    pattern: Annotated[Text, AfterValidator(_compiles)] | None = None
    delimiters: (
        Annotated[tuple[EscapedText, ...] | tuple[StrictInt, ...], Field(min_length=1)] | None
    ) = None

    @property
    def name(self) -> str:
        """Return the name for ``prime_ext.step_rm.splitting.split_steps``."""
        return self.splitter or ("delimiters" if self.pattern is None else "pattern")


def _read_steps(value: Any) -> Any:
    if isinstance(value, str):
        return {"splitter": value}
    if isinstance(value, Mapping) and (len(value) != 1 or "splitter" in value):
        raise ValueError("must be the name of a splitter, {pattern: ...} or {delimiters: [...]}")
    return value


# The value of prime.steps and pspo.steps.
Steps = Annotated[StepSettings, BeforeValidator(_read_steps)]
