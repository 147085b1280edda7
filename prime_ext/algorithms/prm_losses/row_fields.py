# SPDX-License-Identifier: Apache-2.0
"""What every row of a batch carries from the driver to the PRM's loss, and the checks common to all losses."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class RowFields:
    """Three numbers per rollout. With them, a loss is a sum over rows and needs no other row.

    Attributes:
        weight_B: weight of the row relative to the others: 0 for rows that do not count, mean 1 over those that do. The
            caller divides by the number of rows in the mini-batch (multiplies by the weights of ``plan_mini_batches``);
            the sum over micro-batches and ranks is then the loss of the mini-batch. Rows that do not count still take
            up their place in that number, unless the caller leaves them out with :attr:`counts_B`.
        target_B: what the row is trained towards; the outcome label, or as the loss says.
        offset_B: opponent, anchor or margin, as the loss says; 0 where it has none.
    """

    weight_B: torch.Tensor
    target_B: torch.Tensor
    offset_B: torch.Tensor

    @property
    def counts_B(self) -> torch.Tensor:
        """Rows with a weight."""
        return self.weight_B > 0

    def __getitem__(self, rows: Any) -> "RowFields":
        """The fields of some rows, by any index of a tensor: a micro-batch."""
        return RowFields(self.weight_B[rows], self.target_B[rows], self.offset_B[rows])

    def scaled(self, factor_B: torch.Tensor) -> "RowFields":
        """The same rows with weights multiplied by a factor, such as 1 / (rows in the mini-batch)."""
        return RowFields(self.weight_B * factor_B, self.target_B, self.offset_B)


def relative(weight_B: torch.Tensor) -> torch.Tensor:
    """Weights scaled to the mean 1 over the rows that have any; zeros stay zeros."""
    counting = (weight_B > 0).sum().clamp_min(1)
    total = weight_B.sum()
    return torch.where(total > 0, weight_B * counting / total.clamp_min(torch.finfo(weight_B.dtype).tiny), weight_B)


def checked_labels(name: str, label_B: torch.Tensor, valid_B: torch.Tensor, soft: bool) -> torch.Tensor:
    """The labels, 0 for invalid rows.

    Raises:
        ValueError: a label of a valid row is not in [0, 1], or is a fraction where the loss takes none.
    """
    label_B = torch.where(valid_B.bool(), label_B, label_B.new_zeros(()))
    if not ((label_B >= 0) & (label_B <= 1)).all():
        raise ValueError(f"PRM loss {name!r}: labels must be in [0, 1], got {label_B.tolist()}")
    if not soft and not ((label_B == 0) | (label_B == 1)).all():
        fraction = float(label_B[(label_B != 0) & (label_B != 1)][0])
        raise ValueError(
            f"PRM loss {name!r} takes labels 0 and 1 only, got {fraction:g}; ce, bon_acc, bon_rm and nca take fractions"
        )
    return label_B


def checked_scores(name: str, score_B: torch.Tensor | None, valid_B: torch.Tensor) -> torch.Tensor:
    """The detached summed log-ratios of the PRM before its update, 0 for invalid rows.

    Raises:
        ValueError: they are missing, or not finite for a valid row.
    """
    if score_B is None:
        raise ValueError(f"PRM loss {name!r} needs the summed log-ratios of the PRM before its update (score_B)")
    score_B = torch.where(valid_B.bool(), score_B.detach(), score_B.new_zeros(()))
    if not score_B.isfinite().all():
        raise ValueError(f"PRM loss {name!r}: the summed log-ratios before the update are not finite")
    return score_B


def log_ratio_sum(log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """h_i, the sum of q over the valid tokens, the last one included, in float32 or better."""
    kept_BT = torch.where(mask_BT.bool(), log_ratio_BT, log_ratio_BT.new_zeros(()))
    return kept_BT.sum(-1, dtype=torch.promote_types(kept_BT.dtype, torch.float32))
