# SPDX-License-Identifier: Apache-2.0
"""The configuration group ``chain``, in ``prime.process`` and ``pspo``: how the steps of a response become one reward.

Nothing here imports torch; a test compares the names with the algorithms.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Literal, get_args

from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT, Positive, PositiveOrZero, defaults_of, unread

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
    """How the scores of steps become one score (``accumulation``)."""

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
        """Those of the shape in use."""
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
