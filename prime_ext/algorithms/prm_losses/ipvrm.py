# SPDX-License-Identifier: Apache-2.0
"""IPVRM: every prefix of a response has a value that predicts the outcome (arXiv 2604.13197)."""

import torch
import torch.nn.functional as F

from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.implicit_reward import prefix_values
from prime_ext.algorithms.prm_losses.row_fields import RowFields

TIME_WEIGHTS = ("uniform", "early", "late")


def ipvrm_rows(
    label_B: torch.Tensor,
    groups: PromptGroups,
    margin: float = 5.0,
    adaptive_boundary: bool = True,
    dynamic_weight: bool = True,
) -> RowFields:
    """Margin and weight of each row from the accuracy mu of its prompt (Eq. 15). beta / 2 is another usual margin.

    * Adaptive difficulty boundary, b = logit(mu): margin m - b for correct, m + b for wrong responses.
    * Dynamic weight: 1 - mu for correct, mu for wrong responses, scaled to the mean 1 inside the prompt. A prompt with
      one class only has the weight 0.

    In prompts with one class only the margin is m. Without dynamic weights all valid rows count the same, and no groups
    are needed if the boundary is off too (the offline loss, Eq. 9). The paper's online PRM collapses without both.
    Target: the label, 0 or 1. Offset: the margin, in units of beta * q.
    """
    accuracy_B = groups.mean(label_B)
    mixed_B = (accuracy_B > 0) & (accuracy_B < 1)
    margin_B = torch.full_like(label_B, margin)
    if adaptive_boundary:
        boundary_B = torch.logit(accuracy_B, eps=1e-6)
        shifted_B = torch.where(label_B > 0, margin_B - boundary_B, margin_B + boundary_B)
        margin_B = torch.where(mixed_B, shifted_B, margin_B)
    weight_B = groups.valid_B.to(label_B.dtype)
    if dynamic_weight:
        raw_B = torch.where(label_B > 0, 1.0 - accuracy_B, accuracy_B)
        mean_B = groups.mean(raw_B)
        weight_B = torch.where(mixed_B & groups.valid_B, raw_B / torch.where(mixed_B, mean_B, 1.0), 0.0)
    return RowFields(weight_B, label_B, torch.where(groups.valid_B, margin_B, 0.0))


def _time_weights(mask_BT: torch.Tensor, time_weight: str, dtype: torch.dtype) -> torch.Tensor:
    """Weights of the prefixes of each response, summing to one (to zero for rows without a token)."""
    if time_weight not in TIME_WEIGHTS:
        raise ValueError(f"time_weight must be one of {', '.join(TIME_WEIGHTS)}, got {time_weight!r}")
    valid_BT = mask_BT.bool().to(dtype)
    length_B1 = valid_BT.sum(-1, keepdim=True)
    share_BT = valid_BT.cumsum(-1) / length_B1.clamp_min(1)
    if time_weight == "late":
        valid_BT = valid_BT * share_BT
    elif time_weight == "early":
        # A single prefix would have the weight 1 - 1 / 1: it stays uniform.
        valid_BT = torch.where(length_B1 > 1, valid_BT * (1.0 - share_BT), valid_BT)
    total_B1 = valid_BT.sum(-1, keepdim=True)
    return valid_BT / total_B1.masked_fill(total_B1 == 0, 1.0)


def ipvrm_loss(
    log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, rows: RowFields, beta: float, time_weight: str = "uniform"
) -> torch.Tensor:
    """sum_i w_i * mean_t softplus(m_i - s_i * v_it), s_i = +1 for correct, -1 for wrong (Eq. 9).

    v_it = beta * (q_i1 + ... + q_it) / t is the normalised value of the prefix that ends with token t, as in the
    released code; t counts valid tokens. The mean over t may be weighted towards ``early`` (1 - t / L, which the paper
    finds better at locating errors) or ``late`` prefixes (t / L, better at ranking responses), Eqs. 17 and 18.
    """
    _, normalized_BT = prefix_values(log_ratio_BT, mask_BT, beta)
    sign_B1 = (2.0 * rows.target_B - 1.0)[:, None]
    loss_BT = -F.logsigmoid(sign_B1 * normalized_BT - rows.offset_B[:, None])
    loss_B = (loss_BT * _time_weights(mask_BT, time_weight, loss_BT.dtype)).sum(-1)
    return (loss_B * rows.weight_B).sum()
