# SPDX-License-Identifier: Apache-2.0
"""Noise contrastive alignment: which of the K responses of a prompt is the good one, in absolute terms."""

import torch
import torch.nn.functional as F

from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.prm_losses.row_fields import RowFields, log_ratio_sum, relative


def nca_rows(label_B: torch.Tensor, groups: PromptGroups) -> RowFields:
    """p_i = y_i / sum_j y_j over the K responses of the prompt; prompts weigh the same whatever their K.

    Target: K * p_i, the weight of the first term relative to the second one; 0 without a correct response.
    """
    total_B, size_B = groups.sum(label_B), groups.size_B.to(label_B.dtype)
    target_B = torch.where(total_B > 0, size_B * label_B / torch.where(total_B > 0, total_B, 1.0), 0.0)
    weight_B = torch.where(groups.valid_B, 1.0 / size_B.clamp_min(1), 0.0)
    return RowFields(relative(weight_B), target_B, torch.zeros_like(label_B))


def nca_loss(log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, rows: RowFields, beta: float) -> torch.Tensor:
    """sum_i w_i * [-K p_i log sigmoid(r_i) - log sigmoid(-r_i)], r_i = beta * h_i (NCA, arXiv 2402.05369).

    Averaged over the K rows of a prompt this is -sum_i p_i log sigmoid(r_i) - (1/K) sum_i log sigmoid(-r_i), the form
    for rewards whose temperature goes to 0.
    """
    logit_B = beta * log_ratio_sum(log_ratio_BT, mask_BT)
    loss_B = -rows.target_B * F.logsigmoid(logit_B) - F.logsigmoid(-logit_B)
    return (loss_B * rows.weight_B).sum()
