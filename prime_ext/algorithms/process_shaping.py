# SPDX-License-Identifier: Apache-2.0
"""From token rewards to what the process source pays and where.

Granularity; for steps: score, accumulation and length shaping, credit, reward_position; then redistribution.
"""

from dataclasses import dataclass, field

import torch

from prime_ext.algorithms.accumulation import StepScore
from prime_ext.algorithms.chain_reward import ChainReward, ChainValue
from prime_ext.algorithms.returns import kept, last_token_mask, return_to_go, wide
from prime_ext.algorithms.step_credit import StepCredit
from prime_ext.algorithms.steps import StepSpans, end_mask, place_at_ends, sum_over_steps

REWARD_POSITIONS = ("last_token", "step_ends", "tokens")


@dataclass(frozen=True)
class ProcessShaping:
    """The choices, by name.

    Attributes:
        granularity: ``token``, ``prefix_value``, ``step``, ``turn`` (steps that are turns) or ``response``.
        reward_lambda: of tokens and prefix values: sum_l lambda^l r_(t+l); 0 leaves rewards alone.
        credit: of steps; of an accumulated reward at step ends the shares, see :meth:`StepCredit.shares`.
        redistribution: ``none``, ``uniform`` or ``last``, see :func:`redistribute`.
        score: how the sum over a step becomes its score.
        chain: one reward for all steps of a response. With the accumulation ``none`` each step is paid for itself,
            times the length factor if there is a shape.
        reward_position: where the reward of a chain is paid; at step ends and tokens in shares that sum to it.
    """

    granularity: str = "token"
    reward_lambda: float = 0.0
    credit: StepCredit = field(default_factory=StepCredit)
    redistribution: str = "none"
    score: StepScore = field(default_factory=StepScore)
    chain: ChainReward = ChainReward(accumulation="none")
    reward_position: str = "last_token"

    def __call__(
        self, reward_BT: torch.Tensor, mask_BT: torch.Tensor, spans: StepSpans | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What is paid and the mask of where, ``(B, T)`` each.

        Args:
            reward_BT: r_t = beta * q_t of each token.
            mask_BT: response mask.
            spans: the steps or turns, for the granularities of these names.

        Raises:
            ValueError: unknown granularity, reward position or credit of a chain; steps without spans; scores that
                cannot be accumulated.
        """
        paid_BT, source_BT = self._paid(reward_BT, mask_BT, spans)
        if self.redistribution != "none":
            paid_BT = redistribute(paid_BT, source_BT, self.redistribution)
        return paid_BT, source_BT

    def chain_value(self, reward_BT: torch.Tensor, spans: StepSpans) -> ChainValue:
        """What the chains are worth, if there is an accumulation."""
        return self.chain(self.score(sum_over_steps(reward_BT, spans), spans.mask_BS), spans.mask_BS)

    def _paid(
        self, reward_BT: torch.Tensor, mask_BT: torch.Tensor, spans: StepSpans | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        last_BT = last_token_mask(mask_BT)
        if self.granularity == "response":
            return wide(kept(reward_BT, mask_BT)).sum(-1, keepdim=True) * last_BT.to(torch.float32), last_BT
        if self.granularity in ("step", "turn"):
            if spans is None:
                raise ValueError(f"the granularity {self.granularity!r} needs the steps of the responses")
            score_BS = self.score(sum_over_steps(reward_BT, spans), spans.mask_BS)
            if self.chain.accumulation == "none" or self.reward_position == "step_ends":
                paid_BS = paid_at_steps(score_BS, spans.mask_BS, self.chain, self.credit)
                return place_at_ends(paid_BS, spans), end_mask(spans)
            if self.reward_position not in REWARD_POSITIONS:
                raise ValueError(
                    f"reward_position {self.reward_position!r} is not one of {', '.join(REWARD_POSITIONS)}"
                )
            where_BT = last_BT if self.reward_position == "last_token" else mask_BT
            share_BT = where_BT / where_BT.sum(-1, keepdim=True).clamp_min(1)
            return self.chain(score_BS, spans.mask_BS).reward_B[:, None] * share_BT, where_BT
        if self.granularity not in ("token", "prefix_value"):
            raise ValueError(
                f"granularity {self.granularity!r} is not one of token, prefix_value, step, turn, response"
            )
        if self.granularity == "prefix_value":
            # Without the last reward (IPVRM, arXiv 2604.13197, section 4); PRIME's code and paper count every token.
            reward_BT = kept(wide(reward_BT), mask_BT.bool() & ~last_BT.bool())
        if self.reward_lambda > 0.0:
            # sum_l lambda^l r_(t+l), as "lambda" of verl's recipe and of iStar.
            reward_BT = return_to_go(reward_BT, mask_BT, self.reward_lambda)
        return reward_BT, mask_BT


def redistribute(reward_BT: torch.Tensor, mask_BT: torch.Tensor, where: str) -> torch.Tensor:
    """Shift the rewards so that those of a response sum to zero; ``mask_BT`` marks the tokens that carry rewards.

    * ``uniform``: subtract the response's mean reward from each of them.
    * ``last``: subtract the whole sum at the last of them. With V_t as potential this is shaping that leaves the
      optimal policy unchanged (Ng, Harada and Russell 1999): the potential ends at 0.

    The process rewards then move credit inside a response and never between responses. A response with a single reward
    receives 0. 0 outside the mask, whatever stands there.
    """
    if where not in ("uniform", "last"):
        raise ValueError(f"redistribution must be 'uniform' or 'last', got {where!r}")
    kept_BT = wide(kept(reward_BT, mask_BT))
    total_B1 = kept_BT.sum(-1, keepdim=True)
    if where == "last":
        return kept_BT - total_B1 * last_token_mask(mask_BT).to(kept_BT.dtype)
    return kept(kept_BT - total_B1 / mask_BT.bool().sum(-1, keepdim=True).clamp_min(1), mask_BT)


def paid_at_steps(
    score_BS: torch.Tensor, step_mask_BS: torch.Tensor, chain: ChainReward, credit: StepCredit
) -> torch.Tensor:
    """What the end of each step is paid, ``(B, S)``, 0 where there is no step; whoever has scored the steps.

    With an accumulation each step's share of the chain's reward; without one what the credit makes of the step's own
    score, times the length factor if there is a shape.

    Args:
        score_BS: scores of the steps.
        step_mask_BS: whether the row has that step.
        chain: accumulation and shape.
        credit: of steps; of a chain's reward the shares.

    Raises:
        ValueError: scores that cannot be accumulated; a credit without shares.
    """
    if chain.accumulation != "none":
        return chain(score_BS, step_mask_BS).reward_B[:, None] * credit.shares(score_BS, step_mask_BS)
    paid_BS = credit.rewards(score_BS, step_mask_BS)
    if chain.shape != "none":
        paid_BS = paid_BS * chain.length_factor(step_mask_BS.bool().sum(-1))[:, None]
    return paid_BS
