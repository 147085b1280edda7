# SPDX-License-Identifier: Apache-2.0
"""Leave-one-out baselines over prompt groups, by group id, for groups of any size."""

import torch

from prime_ext.algorithms.groups import PromptGroups


def group_sizes(group_B: torch.Tensor, valid_B: torch.Tensor) -> torch.Tensor:
    """Number of valid rollouts in the group of each row, shape ``(B,)``; 0 for invalid rows."""
    return PromptGroups.of(group_B, valid_B).size_B


def leave_one_out(
    reward_BT: torch.Tensor, source_mask_BT: torch.Tensor, group_B: torch.Tensor, form: str = "released"
) -> torch.Tensor:
    """Subtract from each reward what the other rollouts of the same prompt received (PRIME, arXiv 2502.01456, Eq. 5).

    Let m_j be the mean of the reward of rollout j over its source mask and n the size of its group.

    * ``paper`` (Eq. 5): r_it - sum_{j != i} m_j / (n - 1)
    * ``released`` (the code behind the published numbers): r_it * n / (n - 1) - sum_j m_j / (n - 1)

    Averaged over the source mask both are m_i - mean_{j != i} m_j, so they agree exactly for a source with one reward
    per response, such as the outcome. A group of one has no baseline: it receives 0, and the caller reports it.

    Args:
        reward_BT: rewards of one source.
        source_mask_BT: where the source gives rewards: the response mask for process rewards, one-hot at the last
            token for outcomes. Rows without any entry (padding) belong to no group and receive 0.
        group_B: integer id of the prompt of each row; any order, any group size.
        form: ``released`` or ``paper``.

    Returns:
        ``(B, T)`` centred rewards, 0 outside the source mask.
    """
    if form not in ("released", "paper"):
        raise ValueError(f"leave-one-out form must be 'released' or 'paper', got {form!r}")
    keep_BT = source_mask_BT.bool()
    # A selection, not a product with the mask: outside of it there may be anything, NaN included.
    reward_BT = torch.where(keep_BT, reward_BT, reward_BT.new_zeros(()))
    count_B = keep_BT.sum(-1, dtype=torch.int32)
    mean_B = reward_BT.sum(-1) / count_B.clamp_min(1)
    groups = PromptGroups.of(group_B, count_B > 0)
    size_B, group_sum_B = groups.size_B, groups.sum(mean_B)
    others_B = (size_B - 1).clamp_min(1).to(reward_BT.dtype)
    if form == "released":
        scale_B = size_B.to(reward_BT.dtype) / others_B
        centred_BT = (reward_BT * scale_B[:, None]).sub_((group_sum_B / others_B)[:, None])
    else:
        centred_BT = reward_BT - ((group_sum_B - mean_B) / others_B)[:, None]
    return torch.where(keep_BT & (size_B > 1)[:, None], centred_BT, centred_BT.new_zeros(()))
