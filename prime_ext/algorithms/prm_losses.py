# SPDX-License-Identifier: Apache-2.0
"""Losses that train the implicit PRM from outcome labels, by name, each in two parts.

* ``prepare(label_B, group_B, valid_B, score_B=None) -> RowFields`` runs once, on the driver, over
  the global batch: all that needs other rows happens here.
* ``loss(log_ratio_BT, mask_BT, rows, beta) -> scalar`` runs on a worker for one micro-batch and is
  a sum over its rows: however engines cut the batch, sum and gradient stay the same.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from prime_ext import names
from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.returns import apply_mask, upcast


@dataclass(frozen=True)
class RowFields:
    """Three numbers per rollout. With them, a loss is a sum over rows and needs no other row.

    Attributes:
        weight_B: 0 for rows that do not count, mean 1 over those that do. The caller divides by the
            rows of the mini-batch, those that do not count included.
        target_B: the outcome label, or as the loss defines it.
        offset_B: score of the opponent or anchor, as the loss defines it; 0 without one.
    """

    weight_B: torch.Tensor
    target_B: torch.Tensor
    offset_B: torch.Tensor

    def __getitem__(self, rows: Any) -> "RowFields":
        """Return the fields of some rows, by any index of a tensor: a micro-batch."""
        return RowFields(self.weight_B[rows], self.target_B[rows], self.offset_B[rows])


def log_ratio_sum(log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return h_i, the sum of q over the valid tokens, the last included, in float32 or better."""
    return upcast(apply_mask(log_ratio_BT, mask_BT)).sum(-1)


# ---- cross-entropy of the outcome ----------------------------------------------------------------


def ce_rows(label_B: torch.Tensor, groups: PromptGroups) -> RowFields:
    """Give every valid row the same weight. Target: the label."""
    return RowFields(groups.valid_B.to(label_B.dtype), label_B, torch.zeros_like(label_B))


def cross_entropy_loss(
    log_ratio_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    rows: RowFields,
    beta: float,
    bias: torch.Tensor | float = 0.0,
) -> torch.Tensor:
    """Return sum_i w_i * BCE(sigmoid(beta * h_i + b), y_i).

    PRIME (arXiv 2502.01456, Algorithm 1) has b = 0. The loss is computed from the logits, so that a
    saturated PRM still receives a gradient.
    """
    sum_B = log_ratio_sum(log_ratio_BT, mask_BT)
    target_B = rows.target_B.to(sum_B.dtype)
    loss_B = F.binary_cross_entropy_with_logits(beta * sum_B + bias, target_B, reduction="none")
    return (loss_B * rows.weight_B).sum()


# Limit of the bias's starting value, since a first batch may have one outcome only.
LIMIT = 4.0


def compute_logit(mean_outcome: float) -> float:
    """Return log(m / (1 - m)) of a mean outcome m in [0, 1], limited to [-4, 4].

    A trained bias starts there.
    """
    if not 0.0 < mean_outcome < 1.0:
        return math.copysign(LIMIT, mean_outcome - 0.5)
    return min(max(math.log(mean_outcome / (1.0 - mean_outcome)), -LIMIT), LIMIT)


# ---- detached DPO: each response against the average one of the other class ----------------------


def dpo_rows(label_B: torch.Tensor, groups: PromptGroups, score_B: torch.Tensor) -> RowFields:
    """Pair each response with the mean of its prompt's responses of the other class.

    The classes are correct and wrong. Rows of prompts with one class only do not count. Target: the
    label, 0 or 1. Offset: the mean summed log-ratio of the opponents before the update, not
    multiplied by beta.
    """
    n_correct_B = groups.sum(label_B)
    n_wrong_B = groups.sum(1.0 - label_B)
    correct_mean_B = groups.sum(score_B * label_B) / n_correct_B.clamp_min(1)
    wrong_mean_B = groups.sum(score_B * (1.0 - label_B)) / n_wrong_B.clamp_min(1)
    paired_B = groups.valid_B & (n_correct_B > 0) & (n_wrong_B > 0)
    offset_B = torch.where(label_B > 0, wrong_mean_B, correct_mean_B)
    return RowFields(paired_B.to(label_B.dtype), label_B, torch.where(paired_B, offset_B, 0.0))


def dpo_loss(
    log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, rows: RowFields, beta: float
) -> torch.Tensor:
    """Return sum_i w_i * -log sigmoid(beta * s_i * (h_i - offset_i)).

    s_i is +1 for correct and -1 for wrong responses. This is the detached form of DPO (arXiv
    2305.18290) in verl's recipe of PRIME. For prompts with one correct and one wrong response it
    has the value of DPO over pairs at the parameters that made the offsets, and half its gradient.
    """
    sign_B = 2.0 * rows.target_B - 1.0
    margin_B = beta * sign_B * (log_ratio_sum(log_ratio_BT, mask_BT) - rows.offset_B)
    return (-F.logsigmoid(margin_B) * rows.weight_B).sum()


# ---- noise contrastive alignment: which of the responses of a prompt is the good one -------------


def nca_rows(label_B: torch.Tensor, groups: PromptGroups) -> RowFields:
    """Compute p_i = y_i / sum_j y_j over the K responses of a prompt; prompts weigh the same.

    The weight of a prompt does not depend on K. Target: K * p_i, the weight of the first term
    relative to the second one; 0 without a correct response.
    """
    total_B = groups.sum(label_B)
    size_B = groups.size_B.to(label_B.dtype)
    target_B = torch.where(
        total_B > 0, size_B * label_B / torch.where(total_B > 0, total_B, 1.0), 0.0
    )
    weight_B = torch.where(groups.valid_B, 1.0 / size_B.clamp_min(1), 0.0)
    # Scaled to the mean 1.
    weight_B = (
        weight_B * groups.valid_B.sum() / weight_B.sum().clamp_min(torch.finfo(weight_B.dtype).tiny)
    )
    return RowFields(weight_B, target_B, torch.zeros_like(label_B))


def nca_loss(
    log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, rows: RowFields, beta: float
) -> torch.Tensor:
    """Return sum_i w_i * [-K p_i log sigmoid(r_i) - log sigmoid(-r_i)], r_i = beta * h_i.

    This is NCA (arXiv 2402.05369). Averaged over the K rows of a prompt it is -sum_i p_i log
    sigmoid(r_i) - (1/K) sum_i log sigmoid(-r_i), the form for rewards whose temperature goes to 0.
    """
    logit_B = beta * log_ratio_sum(log_ratio_BT, mask_BT)
    loss_B = -rows.target_B * F.logsigmoid(logit_B) - F.logsigmoid(-logit_B)
    return (loss_B * rows.weight_B).sum()


# ---- Kahneman-Tversky optimization: gains and losses against an anchor ---------------------------


def kto_rows(label_B: torch.Tensor, groups: PromptGroups, score_B: torch.Tensor) -> RowFields:
    """Take the anchor z = max(0, mean_j h_j) over the global batch, not over a rank.

    Both classes weigh the same. The paper takes z over prompts with responses to other prompts,
    which needs another forward pass; here it is taken over the rollouts themselves. Target: the
    label, 0 or 1. Offset: z, in units of log-ratios.
    """
    valid_B = groups.valid_B
    z = (score_B.sum() / valid_B.sum().clamp_min(1)).clamp_min(0.0)
    return RowFields(valid_B.to(label_B.dtype), label_B, torch.where(valid_B, z, 0.0))


def kto_loss(
    log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, rows: RowFields, beta: float
) -> torch.Tensor:
    """Return sum_i w_i * [1 - sigmoid(beta * s_i * (h_i - z))] (arXiv 2402.01306, Eq. 7).

    s_i is +1 for correct and -1 for wrong responses. The loss saturates on purpose: a response far
    on the wrong side has no gradient either.
    """
    sign_B = 2.0 * rows.target_B - 1.0
    gain_B = beta * sign_B * (log_ratio_sum(log_ratio_BT, mask_BT) - rows.offset_B)
    # sigmoid(-x) and not 1 - sigmoid(x), which rounds to 0 from x = 17 on.
    return (torch.sigmoid(-gain_B) * rows.weight_B).sum()


# ---- by name -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PRMLossFunction:
    """One entry of the registry.

    Attributes:
        name: key of its traits in :data:`prime_ext.names.PRM_LOSSES`, also used in messages.
        rows: the part on the driver; its labels and scores are 0 in invalid rows.
        loss: the part on the workers.
    """

    name: str
    rows: Callable[..., RowFields]
    loss: Callable[..., torch.Tensor]

    @property
    def needs_scores(self) -> bool:
        """Return whether the rows need ``score_B``, the scores before the PRM's update."""
        return names.PRM_LOSSES[self.name].needs_scores

    def prepare(
        self,
        label_B: torch.Tensor,
        group_B: torch.Tensor,
        valid_B: torch.Tensor,
        score_B: torch.Tensor | None = None,
    ) -> RowFields:
        """Build the global batch's row fields from outcomes and, if needed, scores.

        Outcomes are in [0, 1]; scores are the log-ratios h before the update. Raises ValueError: a
        label is a fraction and the loss takes none, or scores that it needs are not finite.
        """
        label_B = apply_mask(label_B, valid_B)
        fraction_N = label_B[(label_B != 0) & (label_B != 1)]
        if len(fraction_N) and not names.PRM_LOSSES[self.name].allows_soft_labels:
            others = [name for name, loss in names.PRM_LOSSES.items() if loss.allows_soft_labels]
            raise ValueError(
                f"PRM loss {self.name!r} takes labels 0 and 1 only, got {float(fraction_N[0]):g};"
                f" {', '.join(others)} take fractions"
            )
        if not self.needs_scores:
            return self.rows(label_B, PromptGroups.build(group_B, valid_B))
        assert score_B is not None
        score_B = apply_mask(score_B.detach(), valid_B)
        if not score_B.isfinite().all():
            raise ValueError(
                f"PRM loss {self.name!r}: the summed log-ratios before the update are not finite"
            )
        return self.rows(label_B, PromptGroups.build(group_B, valid_B), score_B.to(label_B.dtype))


PRM_LOSSES: dict[str, PRMLossFunction] = {
    entry.name: entry
    for entry in (
        PRMLossFunction("ce", ce_rows, cross_entropy_loss),
        PRMLossFunction("dpo", dpo_rows, dpo_loss),
        PRMLossFunction("nca", nca_rows, nca_loss),
        PRMLossFunction("kto", kto_rows, kto_loss),
    )
}
