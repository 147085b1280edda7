# SPDX-License-Identifier: Apache-2.0
"""PROF: keep the rollouts whose process scores agree with their outcome (arXiv 2509.03403)."""

import torch

from prime_ext.algorithms.groups import PromptGroups


def process_consistency(
    score_BS: torch.Tensor,
    step_mask_BS: torch.Tensor,
    label_B: torch.Tensor,
    length_penalty: float = 0.0,
    step_range: tuple[int, int] = (2, 30),
) -> torch.Tensor:
    """c_i = (2 y_i - 1) * mean_k 2 (p_ik - mean of all step scores of the batch), 0 for rows without steps, ``(B,)``.

    Minus ``length_penalty`` if the number of steps lies outside of ``step_range`` (inclusive).
    """
    mask_BS = step_mask_BS.bool()
    kept_BS = torch.where(mask_BS, score_BS, score_BS.new_zeros(()))
    count_B = mask_BS.sum(-1)
    average = kept_BS.sum() / count_B.sum().clamp_min(1)
    mean_B = kept_BS.sum(-1) / count_B.clamp_min(1)
    consistency_B = (2.0 * label_B - 1.0) * 2.0 * (mean_B - average)
    outside_B = (count_B < step_range[0]) | (count_B > step_range[1])
    return torch.where(count_B > 0, consistency_B - length_penalty * outside_B, consistency_B.new_zeros(()))


def select_consistent(
    consistency_B: torch.Tensor, label_B: torch.Tensor, group_B: torch.Tensor, valid_B: torch.Tensor, remove: int
) -> torch.Tensor:
    """Drop ``remove`` rollouts of each prompt, the least consistent ones of each class, balancing the classes.

    With D = (correct - wrong), min(remove, round((D + remove) / 2)) correct responses go if that is positive, and wrong
    ones for the rest; else wrong ones only. Halves are rounded to the even number. A class too small for its share
    loses all it has: the wrong ones then make up for missing correct ones, but not the other way round. Ties go by the
    order of rows. The scores never enter a reward, so any estimator may follow.

    Returns:
        ``(B,)`` bool, the rows to keep; False for invalid rows.
    """
    groups = PromptGroups.of(group_B, valid_B)
    valid_B = groups.valid_B
    correct_B = valid_B & (label_B > 0.5)
    n_correct_B = groups.sum(correct_B.long())
    n_wrong_B = groups.size_B - n_correct_B
    share_B = ((n_correct_B - n_wrong_B + remove) / 2).round().long().clamp(0, remove)
    drop_correct_B = torch.minimum(share_B, n_correct_B)
    drop_wrong_B = remove - drop_correct_B
    # Rank inside prompt and class.
    by_score_B = torch.argsort(torch.where(valid_B, consistency_B, torch.inf), stable=True)
    classes = PromptGroups.of((2 * groups.index_B + correct_B.long())[by_score_B], valid_B[by_score_B])
    rank_B = torch.empty_like(by_score_B)
    rank_B[by_score_B] = classes.collect((classes.members() >= 0).cumsum(-1) - 1)
    return valid_B & (rank_B >= torch.where(correct_B, drop_correct_B, drop_wrong_B))
