# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy of the outcome."""

import math

import torch
import torch.nn.functional as F

from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.prm_losses.row_fields import RowFields, log_ratio_sum


def ce_rows(label_B: torch.Tensor, groups: PromptGroups) -> RowFields:
    """Every valid row counts the same. Target: the label."""
    return RowFields(groups.valid_B.to(label_B.dtype), label_B, torch.zeros_like(label_B))


def cross_entropy_loss(
    log_ratio_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    rows: RowFields,
    beta: float,
    bias: torch.Tensor | float = 0.0,
) -> torch.Tensor:
    """sum_i w_i * BCE(sigmoid(beta * h_i + b), y_i) (PRIME, arXiv 2502.01456, Eq. 4, where b = 0).

    From the logits, so that a saturated PRM still receives a gradient.
    """
    sum_B = log_ratio_sum(log_ratio_BT, mask_BT)
    target_B = rows.target_B.to(sum_B.dtype)
    loss_B = F.binary_cross_entropy_with_logits(beta * sum_B + bias, target_B, reduction="none")
    return (loss_B * rows.weight_B).sum()


# Of the starting value of the bias: a first batch with one outcome only says no more than that.
LIMIT = 4.0


def logit_of_mean(mean_outcome: float) -> float:
    """log(m / (1 - m)) of a mean outcome m in [0, 1], within [-4, 4]: where a trained bias starts."""
    if not 0.0 < mean_outcome < 1.0:
        return math.copysign(LIMIT, mean_outcome - 0.5)
    return min(max(math.log(mean_outcome / (1.0 - mean_outcome)), -LIMIT), LIMIT)
