# SPDX-License-Identifier: Apache-2.0
"""Length shaping: factors on a response's score by its number of steps (PSPO*, arXiv 2411.11681).

The rule for chains of one step is in ``chain_reward.py``. Shapes use float64, which exponents of
long chains need.
"""

import math
from collections.abc import Callable
from functools import reduce

import torch

WEIBULL_SHAPE = 1.5
WEIBULL_SCALE = 8.0


def weibull_mode(shape: float = WEIBULL_SHAPE, scale: float = WEIBULL_SCALE) -> float:
    """Return the steps at which :func:`weibull` peaks; 3.846 by default.

    This is scale * ((shape - 1) / shape)^(1 / shape). Only a shape above 1 has a peak.
    """
    return float(scale * ((shape - 1) / shape) ** (1 / shape))


def weibull(
    steps: torch.Tensor,
    shape: float = WEIBULL_SHAPE,
    scale: float = WEIBULL_SCALE,
    constant: float | None = 10.735,
) -> torch.Tensor:
    """Return C (k / l) (t / l)^(k-1) exp(-(t / l)^k), the adjusted Weibull of PSPO-WRS.

    k = shape, l = scale; 0 for t <= 0.

    Args:
        steps: numbers of steps t, of any shape, integers or not.
        constant: C; the published one makes the peak .9999956. None: the value that makes it 1,
            10.7350476 by default.
    """
    t = steps.double()
    if constant is None:
        power = (shape - 1) / shape
        constant = scale / shape * power**-power * math.exp(power)
    ratio = t.clamp_min(0) / scale
    value = (
        constant * shape / scale * torch.exp(torch.special.xlogy(shape - 1, ratio) - ratio**shape)
    )
    return torch.where(t > 0, value, 0.0).to(_result_dtype(steps))


def gaussian(
    steps: torch.Tensor, mean: float = 4.0, std: float = 2.0, area: float = 5.0
) -> torch.Tensor:
    """Return area / (std sqrt(2 pi)) exp(-(t - mean)^2 / (2 std^2)), the shape of CN-PPO.

    CN-PPO is the predecessor of PSPO-WRS. With the published values the peak is .99736 at 4 steps.
    """
    t = steps.double()
    peak = area / (std * math.sqrt(2 * math.pi))
    return (peak * torch.exp(-(((t - mean) / std) ** 2) / 2)).to(_result_dtype(steps))


def released(score: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Return h of ``ff(s, t) = s h`` in the README and code of PSPO's repository, not in the paper.

    e^(growth t) up to the peak; after it b (1 - z + z g) with b = e^(growth peak) and z =
    sigmoid(steepness (t - peak)). With d = slope (t - peak), g is e^d for s > good, e^-d for 0 < s
    < bad, and e^(d (s - poor) / good) otherwise. 0 for t <= 0, where the original returns nothing.
    The released reward is s ff = s^2 h: power 2.

    For every s > poor it grows with t without end: longer chains of the same quality are paid more.
    For t > peak it jumps at s = bad (by 1.10 at 5 steps, 4.85 at 20) and s = good (1.02, 1.47).

    Scores s in [0, 1] and numbers of steps t broadcast. Float32 holds the values of some 900 steps.
    """
    growth = 0.5
    peak = 4.0
    slope = 0.1
    steepness = 10.0
    good = 0.88433
    poor = 0.21159
    bad = 0.2
    t, s = torch.broadcast_tensors(steps.double(), score.double())
    past_peak = slope * (t - peak)
    rate = torch.where(s > good, 1.0, torch.where((s > 0) & (s < bad), -1.0, (s - poor) / good))
    gate = torch.sigmoid(steepness * (t - peak))
    late = math.exp(growth * peak) * (1 - gate + gate * torch.exp(past_peak * rate))
    # The early branch stops at the peak, so that its exponential cannot overflow for a late t.
    factor = torch.where(t <= peak, torch.exp(growth * t.clamp_max(peak)), late)
    return torch.where(t > 0, factor, 0.0).to(_result_dtype(score, steps))


def _result_dtype(*inputs: torch.Tensor) -> torch.dtype:
    return reduce(torch.promote_types, (value.dtype for value in inputs), torch.float32)


ShapeOfLength = Callable[[torch.Tensor], torch.Tensor]
# Factors on a score, from the score, the number of steps and the parameters of the shape.
SHAPES: dict[str, Callable[..., torch.Tensor]] = {
    "none": lambda score, steps: torch.ones_like(steps, dtype=_result_dtype(steps)),
    "weibull": lambda score, steps, **parameters: weibull(steps, **parameters),
    "gaussian": lambda score, steps, **parameters: gaussian(steps, **parameters),
    "released": released,
}
