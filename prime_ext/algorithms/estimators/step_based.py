# SPDX-License-Identifier: Apache-2.0
"""Estimators that look at steps or positions: PURE's baseline, SPRO's masked steps, segments of VinePPO and SPO."""

import torch

from prime_ext.algorithms.advantage_forms import masked_step_advantage, segment_advantage
from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.returns import return_to_go_of_kept
from prime_ext.algorithms.reward_source import RewardSource
from prime_ext.algorithms.step_credit import token_leave_one_out
from prime_ext.algorithms.steps import place_at_ends, step_spans, sum_over_steps


def rloo_per_token(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """Leave-one-out with a baseline in proportion to tokens (PURE, arXiv 2504.15275), see :func:`token_leave_one_out`.

    A step lasts from one reward of the source to the next. PURE leaves the separator that it appends to each step out
    of the count; here nothing is appended, and every token counts.
    """
    spans = step_spans(source.mask_BT, response_mask_BT)
    reward_BS = sum_over_steps(source.kept_reward(), spans)
    length_B = response_mask_BT.bool().sum(-1)
    centred_BS = token_leave_one_out(reward_BS, spans.mask_BS, spans.length_BS, length_B, group_B)
    if not source.keeps_singleton("zero"):
        groups = PromptGroups.of(group_B, spans.mask_BS.any(-1))
        centred_BS = torch.where((groups.size_B > 1)[:, None], centred_BS, centred_BS.new_zeros(()))
    return return_to_go_of_kept(place_at_ends(centred_BS, spans), response_mask_BT, source.discount)


def masked_step(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """Rewards so far minus their mean over the rollouts that are still going on (SPRO, arXiv 2507.01551).

    See :func:`masked_step_advantage`. SPRO takes the policy's own log-ratio for q, here it is the PRM's. There is no
    discount, and a rollout alone in its group receives 0.
    """
    return masked_step_advantage(source.kept_reward(), response_mask_BT, group_B)


def segment(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """Value at the end of a token's segment minus value at its start, plus the rewards in it; 0 after the last token.

    With steps as segments it is VinePPO's advantage (arXiv 2410.01679), with cuts at unlikely tokens SPO-chain's (arXiv
    2505.23564), see :func:`segment_advantage`. Both estimate values by rollouts from the cut; here ``source.value_BT``
    gives them. Neither has rewards inside the response; here a KL penalty may be one. The response's first token always
    starts a segment. There is no discount.
    """
    assert source.value_BT is not None and source.cut_BT is not None  # checked by the registry
    mask_BT, reward_BT = response_mask_BT.bool(), source.kept_reward()
    first_BT = mask_BT & (mask_BT.cumsum(-1) == 1)
    cut_BT = (source.cut_BT.bool() & mask_BT) | first_BT
    n_tokens = mask_BT.shape[1]
    token_T = torch.arange(n_tokens, device=mask_BT.device)
    cut_BC = torch.where(cut_BT, token_T, n_tokens).sort(-1).values[:, : max(1, int(cut_BT.sum(-1).max()))]
    exists_BC = cut_BC < n_tokens
    cut_BC = torch.where(exists_BC, cut_BC, 0)
    # With the rewards so far added to every value, the rise of a segment contains its rewards.
    earlier_BT = reward_BT.cumsum(-1) - reward_BT
    value_BC = (source.value_BT.to(reward_BT.dtype) + earlier_BT).gather(1, cut_BC)
    return segment_advantage(value_BC, cut_BC, exists_BC, reward_BT.sum(-1), mask_BT)
