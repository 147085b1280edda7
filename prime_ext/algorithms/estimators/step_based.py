# SPDX-License-Identifier: Apache-2.0
"""Estimators that look at steps or positions: PURE's baseline, SPRO's masked steps, segments of VinePPO and SPO."""

import torch

from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.implicit_reward import prefix_values
from prime_ext.algorithms.returns import following, kept, return_to_go
from prime_ext.algorithms.reward_source import RewardSource
from prime_ext.algorithms.steps import place_at_ends, step_spans, sum_over_steps


def rloo_per_token(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """r_ik - N_ik * (sum of the others' rewards) / (sum of the others' lengths): PURE (arXiv 2504.15275).

    A baseline per step would favour few long steps; this one is in proportion to N_ik, the tokens of the step. A step
    lasts from one reward of the source to the next. PURE leaves the separator that it appends to each step out of the
    count; here nothing is appended, and every token counts.
    """
    spans = step_spans(source.mask_BT, response_mask_BT)
    reward_BS = sum_over_steps(source.kept_reward(), spans)
    total_B, length_B = reward_BS.sum(-1), response_mask_BT.bool().sum(-1).to(reward_BS.dtype)
    groups = PromptGroups.of(group_B, spans.mask_BS.any(-1))
    per_token_B = (groups.sum(total_B) - total_B) / (groups.sum(length_B) - length_B).clamp_min(1)
    centred_BS = reward_BS - per_token_B[:, None] * spans.length_BS.to(reward_BS.dtype)
    if not source.keeps_singleton("zero"):
        centred_BS = kept(centred_BS, (groups.size_B > 1)[:, None])
    return return_to_go(place_at_ends(centred_BS, spans), response_mask_BT, source.discount)


def masked_step(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """V_it minus its mean over the rollouts of the prompt that are still valid at position t (SPRO, arXiv 2507.01551).

    V_it = r_i1 + ... + r_it, for SPRO the policy's own log-ratio to its reference; here it is the PRM's. To be added to
    the outcome advantage of GRPO. 0 where no other rollout is left to compare with. Positions are those of the
    response, so a hole counts as a position. There is no discount.
    """
    value_BT, _ = prefix_values(source.kept_reward(), response_mask_BT, 1.0)
    valid_BT = response_mask_BT.bool()
    groups = PromptGroups.of(group_B, valid_BT.any(-1))
    alive_BT = groups.sum(valid_BT.to(value_BT.dtype))
    return kept(value_BT - groups.sum(value_BT) / alive_BT.clamp_min(1), valid_BT & (alive_BT > 1))


def segment(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """Value at the end of a token's segment minus value at its start, plus the rewards in it; 0 after the last token.

    With steps as segments it is VinePPO's advantage (arXiv 2410.01679), with cuts at unlikely tokens SPO-chain's (arXiv
    2505.23564). Both estimate values by rollouts from the cut; here ``source.value_BT`` gives that of the state before
    each token. Neither has rewards inside the response; here a KL penalty may be one. The response's first token always
    starts a segment, and the value after the last token is the outcome. There is no discount.
    """
    assert source.value_BT is not None and source.cut_BT is not None  # checked by the registry
    mask_BT, reward_BT = response_mask_BT.bool(), source.kept_reward()
    cut_BT = mask_BT & (source.cut_BT.bool() | (mask_BT.cumsum(-1) == 1))
    # With the rewards so far added to every value, the rise of a segment contains its rewards.
    worth_BT = source.value_BT.to(reward_BT.dtype) + (reward_BT.cumsum(-1) - reward_BT)
    worth_BT = torch.cat([worth_BT, reward_BT.sum(-1, keepdim=True)], -1)
    begin_BT = torch.where(cut_BT, torch.arange(mask_BT.shape[1], device=mask_BT.device), 0).cummax(-1).values
    return kept(worth_BT.gather(1, following(cut_BT)) - worth_BT.gather(1, begin_BT), mask_BT)


def low_probability_cuts(
    probability_BT: torch.Tensor, mask_BT: torch.Tensor, threshold: float, every: int
) -> torch.Tensor:
    """Every ``every``-th token the old policy was not sure of starts a segment (SPO-chain), ``(B, T)`` bool.

    The first such token is the first cut; one at the threshold itself counts as sure.
    """
    candidate_BT = mask_BT.bool() & (probability_BT < threshold)
    return candidate_BT & ((candidate_BT.cumsum(-1) - 1) % every == 0)
