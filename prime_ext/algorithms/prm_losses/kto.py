# SPDX-License-Identifier: Apache-2.0
"""Kahneman-Tversky optimisation: gains and losses against an anchor, no pairs needed."""

import torch

from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.prm_losses.row_fields import RowFields, log_ratio_sum


def kto_rows(label_B: torch.Tensor, groups: PromptGroups, score_B: torch.Tensor) -> RowFields:
    """Anchor z = max(0, mean_j h_j) over the global batch, not over a rank; both classes weigh the same.

    The paper takes z over prompts with responses to other prompts, for another forward pass; here it is taken over the
    rollouts themselves. Target: the label, 0 or 1. Offset: z, in units of log-ratios.
    """
    valid_B = groups.valid_B
    z = (score_B.sum() / valid_B.sum().clamp_min(1)).clamp_min(0.0)
    return RowFields(valid_B.to(label_B.dtype), label_B, torch.where(valid_B, z, 0.0))


def kto_loss(log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, rows: RowFields, beta: float) -> torch.Tensor:
    """sum_i w_i * [1 - sigmoid(beta * s_i * (h_i - z))], s_i = +1 for correct, -1 for wrong (arXiv 2402.01306, Eq. 7).

    It saturates on purpose: a response far on the wrong side has no gradient either.
    """
    sign_B = 2.0 * rows.target_B - 1.0
    gain_B = beta * sign_B * (log_ratio_sum(log_ratio_BT, mask_BT) - rows.offset_B)
    # sigmoid(-x) and not 1 - sigmoid(x), which rounds to 0 from x = 17 on.
    return (torch.sigmoid(-gain_B) * rows.weight_B).sum()
