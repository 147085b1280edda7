# SPDX-License-Identifier: Apache-2.0
"""Value of a complete chain of steps: score times length factor (PSPO*, arXiv 2411.11681)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from prime_ext.algorithms.accumulation import accumulate
from prime_ext.algorithms.shaping import SHAPES
from prime_ext.names import SingleStep


@dataclass(frozen=True)
class ChainValue:
    """Number of steps n, score F (0 without a step), factor h and F^power * h, ``(B,)`` each."""

    count_B: torch.Tensor
    score_B: torch.Tensor
    factor_B: torch.Tensor
    reward_B: torch.Tensor


@dataclass(frozen=True)
class ChainReward:
    """R = F^power * h(n, F), with F of :func:`accumulate` and h one of :data:`SHAPES`.

    PSPO-WRS is geometric, power 1, Weibull; its predecessor CN-PPO is geometric, first weight 0.2,
    Gaussian; the code released with PSPO is geometric, power 2, ``released``. All three give 0 to a
    chain of at most one step.

    Attributes:
        accumulation, first_weight: of :func:`accumulate`; ``none`` where only :meth:`length_factor`
            is needed.
        power: exponent of the accumulated score.
        single_step: ``zero``: a chain of one step is worth 0; ``keep``: it is valued like the
            others.
        shape, parameters: a key of :data:`SHAPES`, and the parameters of the shape.
    """

    accumulation: str = "geometric"
    first_weight: float = 1.0
    power: float = 1.0
    single_step: SingleStep = "zero"
    shape: str = "none"
    parameters: Mapping[str, float | None] = field(default_factory=dict)

    def __call__(self, step_score_BS: torch.Tensor, step_mask_BS: torch.Tensor) -> ChainValue:
        """Return the value of each response from the scores of its steps.

        Scores are ``(B, S)``, with the mask of steps. Raises ValueError as :func:`accumulate` does,
        and for a power other than 1 of a negative accumulated score.
        """
        score_B = accumulate(step_score_BS, step_mask_BS, self.accumulation, self.first_weight)
        count_B = step_mask_BS.bool().sum(-1)
        if self.power != 1 and bool((score_B < 0).any()):
            raise ValueError(
                f"power={self.power:g} of a negative accumulated score, {float(score_B.min()):g}"
            )
        factor_B = self.factor(score_B, count_B)
        return ChainValue(count_B, score_B, factor_B, score_B**self.power * factor_B)

    def length_factor(self, count_B: torch.Tensor) -> torch.Tensor:
        """Return h(n) of a shape that does not read the accumulated score."""
        return self.factor(torch.zeros(count_B.shape, device=count_B.device), count_B)

    def factor(self, score: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """Return h(n, F), 0 for too short chains; only the shape ``released`` reads the score."""
        factor = SHAPES[self.shape](score, steps.to(score.dtype), **self.parameters)
        fewest = 2 if self.single_step == "zero" else 1
        return torch.where(steps >= fewest, factor, factor.new_zeros(()))
