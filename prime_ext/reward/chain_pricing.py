# SPDX-License-Identifier: Apache-2.0
"""What a response is worth, from the scores of its steps, by the pure functions of :mod:`prime_ext.algorithms`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from prime_ext.algorithms.chain_reward import ChainReward
from prime_ext.algorithms.process_shaping import paid_at_steps
from prime_ext.algorithms.step_credit import StepCredit
from prime_ext.config.chain_settings import chain_arguments
from prime_ext.config.pspo_settings import PSPOSettings

_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class PricedChain:
    """The reward of a response; all is None where its scores are missing.

    Attributes:
        reward: in all.
        factor: h(n), the rule for single steps included.
        score: the accumulated score F; None where every step is paid for itself.
        paid: what the end of each step is paid; empty if nothing is paid at steps. It sums to the reward.
    """

    reward: float | None = None
    factor: float | None = None
    score: float | None = None
    paid: tuple[float, ...] = ()


class ChainPricing:
    """Accumulation, shaping and credit as the section ``pspo`` says.

    Everything is computed in float64, and refused if float32, in which rewards travel, cannot hold it: the shape
    ``released`` grows without bound.
    """

    def __init__(self, settings: PSPOSettings):
        self._chain = ChainReward(**chain_arguments(settings.accumulation, settings.shaping))
        self._credit = StepCredit(settings.credit, settings.credit_temperature, settings.credit_threshold or 0.0)
        self._accumulates = settings.accumulation.mode != "none"
        self._at_steps = not self._accumulates or settings.accumulation.reward_position == "step_ends"

    def __call__(self, scores: Sequence[float]) -> PricedChain:
        """The reward of a response with these scores of its steps; without a step it is 0.

        Raises:
            ValueError: scores that cannot be accumulated, or a reward that is not finite.
        """
        if not scores:
            return PricedChain(0.0, 0.0, 0.0 if self._accumulates else None)
        score_BS = torch.tensor([list(scores)], dtype=torch.float64)
        mask_BS = torch.ones_like(score_BS, dtype=torch.bool)
        paid: tuple[float, ...] = ()
        if self._at_steps:
            paid = tuple(paid_at_steps(score_BS, mask_BS, self._chain, self._credit)[0].tolist())
        if self._accumulates:
            value = self._chain(score_BS, mask_BS)
            reward, factor, score = float(value.reward_B), float(value.factor_B), float(value.score_B)
        else:
            shaped = self._chain.shape != "none"
            factor = float(self._chain.length_factor(mask_BS.sum(-1))) if shaped else 1.0
            reward, score = math.fsum(paid), None
        if not all(abs(amount) <= _LARGEST for amount in (reward, *paid)):
            raise ValueError(f"a reward of {reward:g} for {len(scores)} steps, which float32 cannot hold")
        return PricedChain(reward, factor, score, paid)
