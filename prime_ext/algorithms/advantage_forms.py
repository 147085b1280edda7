# SPDX-License-Identifier: Apache-2.0
"""Advantages that are neither returns nor returns minus a baseline: segments and masked steps."""

import torch

from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.process_reward import prefix_values


def masked_step_advantage(reward_BT: torch.Tensor, mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """V_it minus its mean over the rollouts of the prompt that are still valid at position t (SPRO, arXiv 2507.01551).

    V_it = r_i1 + ... + r_it, for SPRO the policy's own log-ratio to its reference. To be added to the
    outcome advantage of GRPO. 0 where no other rollout is left to compare with. Positions are those of the response, so
    a hole counts as a position.
    """
    value_BT, _ = prefix_values(reward_BT, mask_BT, 1.0)
    valid_BT = mask_BT.bool()
    groups = PromptGroups.of(group_B, valid_BT.any(-1))
    alive_BT = groups.sum(valid_BT.to(value_BT.dtype))
    centred_BT = value_BT - groups.sum(value_BT) / alive_BT.clamp_min(1)
    return torch.where(valid_BT & (alive_BT > 1), centred_BT, centred_BT.new_zeros(()))


def segment_advantage(
    value_BC: torch.Tensor,
    cut_BC: torch.Tensor,
    cut_mask_BC: torch.Tensor,
    final_value_B: torch.Tensor,
    mask_BT: torch.Tensor,
) -> torch.Tensor:
    """Value at the end of a segment minus value at its start, for every token of the segment, ``(B, T)``.

    With cuts at low-probability tokens this is SPO-chain (arXiv 2505.23564), with cuts at the steps of the response
    VinePPO (arXiv 2410.01679, no reward between steps).

    Args:
        value_BC: value of the state before the token ``cut_BC``, estimated for example by rollouts from there.
        cut_BC: first token of each segment, ascending in each row.
        cut_mask_BC: cuts that exist, a prefix of the row. Tokens before the first cut receive 0, so give the prompt
            (position 0) as a cut to cover them; a row without cuts receives 0.
        final_value_B: value after the last token: the outcome.
        mask_BT: valid tokens.
    """
    mask_BC, n_tokens = cut_mask_BC.bool(), mask_BT.shape[1]
    kept_BC = torch.where(mask_BC, value_BC, value_BC.new_zeros(()))
    following_BC = torch.nn.functional.pad(kept_BC[:, 1:], (0, 1))
    last_BC = torch.arange(mask_BC.shape[1], device=mask_BC.device)[None, :] == mask_BC.sum(-1, keepdim=True) - 1
    rise_BC = torch.where(last_BC, final_value_B.to(kept_BC.dtype)[:, None], following_BC) - kept_BC
    starts_BT = torch.zeros(len(mask_BT), n_tokens + 1, dtype=torch.int64, device=mask_BT.device)
    starts_BT = starts_BT.scatter_add_(1, torch.where(mask_BC, cut_BC, n_tokens), mask_BC.long())[:, :-1]
    segment_BT = starts_BT.cumsum(-1) - 1
    taken_BT = rise_BC.gather(1, segment_BT.clamp_min(0))
    return torch.where(mask_BT.bool() & (segment_BT >= 0), taken_BT, taken_BT.new_zeros(()))


def low_probability_cuts(
    probability_BT: torch.Tensor, mask_BT: torch.Tensor, threshold: float = 0.9, every: int = 5
) -> torch.Tensor:
    """Every ``every``-th token the old policy was not sure of starts a segment (SPO-chain), ``(B, T)`` bool.

    The first such token is the first cut; one at the threshold itself counts as sure.
    """
    candidate_BT = mask_BT.bool() & (probability_BT < threshold)
    return candidate_BT & ((candidate_BT.cumsum(-1) - 1) % every == 0)
