# SPDX-License-Identifier: Apache-2.0
"""What every row of a batch carries from the driver to the PRM's loss, and what several losses compute."""

from dataclasses import dataclass
from typing import Any

import torch

from prime_ext.algorithms.returns import kept, wide


@dataclass(frozen=True)
class RowFields:
    """Three numbers per rollout. With them, a loss is a sum over rows and needs no other row.

    Attributes:
        weight_B: 0 for rows that do not count, mean 1 over those that do. The caller divides by the rows of the
            mini-batch, those that do not count included.
        target_B: what the row is trained towards; the outcome label, or as the loss says.
        offset_B: opponent or anchor, as the loss says; 0 where it has none.
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


def relative(weight_B: torch.Tensor) -> torch.Tensor:
    """Weights scaled to the mean 1 over the rows that have any; zeros stay zeros."""
    counting = (weight_B > 0).sum().clamp_min(1)
    total = weight_B.sum()
    return torch.where(total > 0, weight_B * counting / total.clamp_min(torch.finfo(weight_B.dtype).tiny), weight_B)


def log_ratio_sum(log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """h_i, the sum of q over the valid tokens, the last one included, in float32 or better."""
    return wide(kept(log_ratio_BT, mask_BT)).sum(-1)
