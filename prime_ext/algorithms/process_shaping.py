# SPDX-License-Identifier: Apache-2.0
"""Process rewards from token rewards, at the granularity of tokens, steps, turns or responses.

For steps: score, accumulation, length shaping, credit and position. Scores of steps are ``(B, S)``,
with the mask of steps a prefix of the row (see :class:`StepSpans`).
"""

from dataclasses import dataclass, field
from typing import Literal

import torch

from prime_ext.algorithms.accumulation import StepScoreFunction
from prime_ext.algorithms.chain_reward import ChainReward, ChainValue
from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.returns import apply_mask, mark_last_token, upcast
from prime_ext.algorithms.steps import StepSpans, mark_ends, place_at_ends, sum_over_steps
from prime_ext.names import Credit, RewardPosition


def credit_rewards(
    credit: Credit, score_BS: torch.Tensor, step_mask_BS: torch.Tensor
) -> torch.Tensor:
    """Compute step rewards ``(B, S)``, 0 outside of the mask.

    They are the scores with ``sum``; with ``min_form`` (PURE, arXiv 2504.15275) they are the scores
    times :func:`softmin_weights`, so that a good step cannot make up for a bad one.
    """
    score_BS = apply_mask(score_BS, step_mask_BS)
    return score_BS if credit == "sum" else softmin_weights(score_BS, step_mask_BS) * score_BS


def credit_shares(
    credit: Credit, score_BS: torch.Tensor, step_mask_BS: torch.Tensor
) -> torch.Tensor:
    """Compute each step's share of one reward, ``(B, S)``: equal for ``sum``, else soft-min."""
    mask_BS = step_mask_BS.bool()
    if credit == "sum":
        return mask_BS.to(score_BS.dtype) / mask_BS.sum(-1, keepdim=True).clamp_min(1)
    return softmin_weights(score_BS, mask_BS)


def softmin_weights(
    score_BS: torch.Tensor, step_mask_BS: torch.Tensor, temperature: float = 0.1
) -> torch.Tensor:
    """Compute w = softmax(-p / temperature) over the steps, 0 elsewhere (PURE).

    w * p sums to a soft minimum.
    """
    mask_BS = step_mask_BS.bool()
    return apply_mask(
        torch.where(mask_BS, -score_BS / temperature, -torch.inf).softmax(-1), mask_BS
    )


@dataclass(frozen=True)
class ProcessShaping:
    """Function from token rewards to the rewards of the process source and their positions.

    Attributes:
        granularity: ``token``, ``step``, ``turn`` (steps that are turns) or ``response``.
        credit: see :func:`credit_rewards`.
        score: function from the sum over a step to its score.
        chain: function from the scores of all steps to one reward; with the accumulation ``none``
            each step has a reward instead.
        reward_position: tokens that get the reward of a chain; step ends and tokens get shares of
            it.
    """

    granularity: Literal["token", "step", "turn", "response"] = "token"
    credit: Credit = "sum"
    score: StepScoreFunction = field(default_factory=StepScoreFunction)
    chain: ChainReward = ChainReward(accumulation="none")
    reward_position: RewardPosition = "last_token"

    def __call__(
        self,
        reward_BT: torch.Tensor,
        mask_BT: torch.Tensor,
        spans: StepSpans | None = None,
        score_BS: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the paid rewards and the mask of their positions, ``(B, T)`` each.

        ``reward_BT`` are the rewards r_t = beta * q_t of tokens. Steps and turns need ``spans``;
        their scores are ``score_BS``, or follow from the rewards of their tokens. Raises ValueError
        for scores that are not finite where they are accumulated.
        """
        last_BT = mark_last_token(mask_BT)
        if self.granularity == "token":
            return reward_BT, mask_BT
        if self.granularity == "response":
            return upcast(apply_mask(reward_BT, mask_BT)).sum(-1, keepdim=True) * last_BT.to(
                torch.float32
            ), last_BT
        assert spans is not None
        if self.chain.accumulation == "none" or self.reward_position == "step_ends":
            paid_BS = compute_step_rewards(
                self._score(reward_BT, spans, score_BS), spans.mask_BS, self.chain, self.credit
            )
            return place_at_ends(paid_BS, spans), mark_ends(spans)
        where_BT = last_BT if self.reward_position == "last_token" else mask_BT
        share_BT = where_BT / where_BT.sum(-1, keepdim=True).clamp_min(1)
        return self.chain_value(reward_BT, spans, score_BS).reward_B[:, None] * share_BT, where_BT

    def chain_value(
        self, reward_BT: torch.Tensor, spans: StepSpans, score_BS: torch.Tensor | None = None
    ) -> ChainValue:
        """Compute the values of the chains; needs an accumulation."""
        return self.chain(self._score(reward_BT, spans, score_BS), spans.mask_BS)

    def _score(
        self, reward_BT: torch.Tensor, spans: StepSpans, score_BS: torch.Tensor | None
    ) -> torch.Tensor:
        if score_BS is not None:
            return score_BS
        return self.score(sum_over_steps(reward_BT, spans), spans.mask_BS)


def center_wrong(
    reward_BT: torch.Tensor, mask_BT: torch.Tensor, label_B: torch.Tensor, group_B: torch.Tensor
) -> torch.Tensor:
    """Subtract from the rewards of a prompt's wrong responses their mean, at the mask's positions.

    The idea is the outcome-conditioned centering of PROGRS (arXiv 2604.02341). The mean is over
    rewards, so that the wrong responses of a prompt earn 0 together, and more steps gain nothing by
    their number. Right responses (``label_B`` above 1/2) keep their rewards.
    """
    mask_BT = mask_BT.bool()
    wrong_B = mask_BT.any(-1) & (label_B <= 0.5)
    groups = PromptGroups.build(group_B, wrong_B)
    reward_BT = apply_mask(reward_BT, mask_BT)
    count_B = groups.sum(mask_BT.sum(-1)).clamp_min(1)
    mean_B = groups.sum(upcast(reward_BT).sum(-1)) / count_B
    return reward_BT - apply_mask(mean_B[:, None], mask_BT & wrong_B[:, None])


def compute_step_rewards(
    score_BS: torch.Tensor, step_mask_BS: torch.Tensor, chain: ChainReward, credit: Credit
) -> torch.Tensor:
    """Compute the reward at the end of each step, ``(B, S)``, 0 outside of the mask.

    With an accumulation it is the step's share of the chain's reward; otherwise it is the step's
    reward of :func:`credit_rewards`, times the length factor of a shape. Raises ValueError for
    scores that are not finite where they are accumulated.
    """
    if chain.accumulation != "none":
        return chain(score_BS, step_mask_BS).reward_B[:, None] * credit_shares(
            credit, score_BS, step_mask_BS
        )
    paid_BS = credit_rewards(credit, score_BS, step_mask_BS)
    if chain.shape != "none":
        paid_BS = paid_BS * chain.length_factor(step_mask_BS.bool().sum(-1))[:, None]
    return paid_BS
