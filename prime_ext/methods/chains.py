# SPDX-License-Identifier: Apache-2.0
"""The group ``chain``: how the scores of a response's steps become one reward. No torch.

docs/explanation/process_rewards.md explains it.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Tag
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT, Positive, PositiveOrZero, Text, choose_by, limit_to
from prime_ext.names import Accumulation, Credit, RewardPosition, SingleStep, list_plain_shapes


@dataclass(frozen=True, config=STRICT)
class AccumulationSettings:
    """Settings for combining the scores of steps into one score (``accumulation``)."""

    mode: Accumulation = "geometric"
    """geometric (PSPO-WRS), mean or min."""
    first_weight: Positive = 1.0
    """Factor on the first step's score. CN-PPO has 0.2, since the first step mostly restates the
    question; a small factor rewards length."""
    power: Positive = 1.0
    """Exponent of the accumulated score: 1 in the paper, 2 in its released code."""
    single_step: SingleStep = "zero"
    """Reward of a response of one step: zero (PSPO-WRS), or keep (like that of any other). A
    response without steps has the reward 0."""
    reward_position: RewardPosition = "last_token"
    """Where the reward is paid: last_token (PSPO-WRS); or step_ends or tokens, in shares that sum
    to it."""


@dataclass(frozen=True, config=STRICT)
class WeibullSettings:
    """The adjusted Weibull of PSPO-WRS."""

    name: Literal["weibull"] = "weibull"
    """C (k / l) (n / l)^(k - 1) exp(-(n / l)^k) for n steps."""
    shape: Positive = 1.5
    """Exponent k; above 1 there is a peak, at scale * ((shape - 1) / shape)^(1 / shape) steps: 3.85
    here."""
    scale: Positive = 8.0
    """Scale l, in steps."""
    constant: Positive | None = 10.735
    """Factor on the density; null: the one that makes the peak 1. The published 10.735 does so, to
    six digits, only for shape 1.5 and scale 8."""


@dataclass(frozen=True, config=STRICT)
class GaussianSettings:
    """The bell curve of CN-PPO."""

    name: Literal["gaussian"] = "gaussian"
    """A bell curve around a number of steps."""
    mean: PositiveOrZero = 4.0
    """Mean, in steps."""
    std: Positive = 2.0
    """Standard deviation, in steps."""
    area: Positive = 5.0
    """Factor on the density. With the published 5 the peak is .997 for std 2."""


@dataclass(frozen=True, config=STRICT)
class NamedShapeSettings:
    """A shape without parameters, of PSPO's released code or of a module of the user's."""

    name: Annotated[Text, limit_to(list_plain_shapes)]
    """The function ff(s, t) of the released code, which rewards length without limit."""


# Factors on scores for the number of steps (``shaping``).
ShapingSettings = Annotated[
    Annotated[WeibullSettings, Tag("<weibull>")]
    | Annotated[GaussianSettings, Tag("<gaussian>")]
    | Annotated[NamedShapeSettings, Tag("<also>")],
    choose_by(
        "name", "chain@prime.process=pspo_wrs, cn_ppo, pspo_released or plain", list_plain_shapes
    ),
]


@dataclass(frozen=True, config=STRICT)
class ChainSettings:
    """Chain of a response's steps: the rule by which their scores become one reward.

    It is the accumulated score to a power, times a factor for the number of steps
    (docs/explanation/process_rewards.md).
    """

    accumulation: AccumulationSettings | None = None
    """How the scores of the steps become one score; null: each step is paid separately."""
    shaping: ShapingSettings | None = None
    """Factor on this score for the number of steps; null: none."""
    credit: Credit = "sum"
    """Reward of a step. sum: its score; min_form: its score times softmax(-score / .1) (PURE). With
    an accumulation and reward_position: step_ends, the steps' shares of the one reward: equal
    (sum), or softmax(-score / .1) (min_form)."""

    @property
    def reward_position(self) -> RewardPosition:
        """Return where the reward of all steps is paid, if there is one."""
        return "last_token" if self.accumulation is None else self.accumulation.reward_position

    @property
    def zeroes_single_steps(self) -> bool:
        """Return whether a response of one step gets no reward for it."""
        if self.accumulation is None:
            return self.shaping is not None
        return self.accumulation.single_step == "zero"

    def chain_problems(self) -> Iterable[str]:
        """Yield the conflicts between settings."""
        key = "prime.process"
        accumulation = self.accumulation
        shaping = self.shaping
        if shaping is not None and shaping.name == "released" and accumulation is None:
            yield (
                f"{key}.shaping.name=released reads the accumulated score; choose"
                f" chain@{key}=pspo_released"
            )
        if isinstance(shaping, WeibullSettings) and shaping.shape <= 1 and shaping.constant is None:
            yield (
                f"{key}.shaping.shape={shaping.shape} has no peak; set it above 1, or the constant"
            )
        if (
            accumulation is not None
            and self.credit != "sum"
            and accumulation.reward_position != "step_ends"
        ):
            yield (
                f"{key}.credit={self.credit} is for steps paid each for itself (accumulation=null),"
                " or for reward_position=step_ends; set it to sum"
            )

    def chain_arguments(self) -> dict[str, Any]:
        """Return the arguments of :class:`prime_ext.algorithms.chain_reward.ChainReward`."""
        arguments: dict[str, Any] = {"accumulation": "none"}
        if self.accumulation is not None:
            arguments = asdict(self.accumulation)
            arguments["accumulation"] = arguments.pop("mode")
            del arguments["reward_position"]
        if self.shaping is None:
            return arguments
        parameters = asdict(self.shaping)
        return {**arguments, "shape": parameters.pop("name"), "parameters": parameters}


# The files of the group chain: what each is, and its values.
CHAINS = {
    "plain": ("Each step is paid separately.", ChainSettings()),
    "pspo_wrs": (
        "PSPO-WRS (arXiv 2411.11681): geometric mean of the steps' scores times the adjusted"
        " Weibull, at the last token.",
        ChainSettings(AccumulationSettings(), WeibullSettings()),
    ),
    "cn_ppo": (
        "CN-PPO, the predecessor of PSPO-WRS: geometric mean with a small first score, times a"
        " Gaussian.",
        ChainSettings(AccumulationSettings(first_weight=0.2), GaussianSettings()),
    ),
    "pspo_released": (
        "The reward in the code released with PSPO, which is not the paper's. It grows without"
        " limit with the number of steps.",
        ChainSettings(AccumulationSettings(power=2.0), NamedShapeSettings("released")),
    ),
}
