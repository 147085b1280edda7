# SPDX-License-Identifier: Apache-2.0
"""Preference loss with detached opponents: each response against the average one of the other class."""

import torch
import torch.nn.functional as F

from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.prm_losses.row_fields import RowFields, log_ratio_sum


def dpo_rows(label_B: torch.Tensor, groups: PromptGroups, score_B: torch.Tensor) -> RowFields:
    """Pair each correct response with the mean of the wrong ones of its prompt, and each wrong one with the correct.

    Rows of prompts with one class only do not count. Target: the label, 0 or 1. Offset: the mean summed log-ratio of
    the opponents before the update, not multiplied by beta.
    """
    n_correct_B = groups.sum(label_B)
    n_wrong_B = groups.sum(1.0 - label_B)
    correct_mean_B = groups.sum(score_B * label_B) / n_correct_B.clamp_min(1)
    wrong_mean_B = groups.sum(score_B * (1.0 - label_B)) / n_wrong_B.clamp_min(1)
    paired_B = groups.valid_B & (n_correct_B > 0) & (n_wrong_B > 0)
    offset_B = torch.where(label_B > 0, wrong_mean_B, correct_mean_B)
    return RowFields(paired_B.to(label_B.dtype), label_B, torch.where(paired_B, offset_B, 0.0))


def dpo_loss(log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, rows: RowFields, beta: float) -> torch.Tensor:
    """sum_i w_i * -log sigmoid(beta * s_i * (h_i - offset_i)), s_i = +1 for correct and -1 for wrong responses.

    The detached form of DPO (arXiv 2305.18290) in verl's recipe of PRIME. For prompts with one correct and one wrong
    response it has the value of DPO over pairs at the parameters that made the offsets, and half its gradient.
    """
    sign_B = 2.0 * rows.target_B - 1.0
    margin_B = beta * sign_B * (log_ratio_sum(log_ratio_BT, mask_BT) - rows.offset_B)
    return (-F.logsigmoid(margin_B) * rows.weight_B).sum()
