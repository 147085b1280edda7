# SPDX-License-Identifier: Apache-2.0
"""Statistics over the rollouts of a prompt, by group id, for groups of any size in any order."""

from dataclasses import dataclass

import torch

from prime_ext.algorithms.returns import apply_mask


@dataclass(frozen=True)
class PromptGroups:
    """Groups of rows that share a prompt, in linear time and memory.

    Attributes:
        index_B: number of the group, ``0 .. n_groups - 1``; ``n_groups`` for invalid rows.
        valid_B: rows that take part; padding belongs to no group, whatever its id.
        size_B: valid rows in the group of each row, 0 for invalid rows.
        n_groups: groups with a valid row.
    """

    index_B: torch.Tensor
    valid_B: torch.Tensor
    size_B: torch.Tensor
    n_groups: int

    @classmethod
    def build(cls, group_B: torch.Tensor, valid_B: torch.Tensor) -> "PromptGroups":
        """Assign numbers to the groups of the valid rows."""
        valid_B = valid_B.bool()
        ids_G, inverse_N = torch.unique(group_B[valid_B], return_inverse=True)
        index_B = torch.full_like(group_B, len(ids_G), dtype=torch.int64)
        index_B[valid_B] = inverse_N
        count_G = torch.bincount(index_B, minlength=len(ids_G) + 1)
        return cls(index_B, valid_B, torch.where(valid_B, count_G[index_B], 0), len(ids_G))

    def sum(self, value_BX: torch.Tensor) -> torch.Tensor:
        """Return the sum over the group of each row, in the input's shape; 0 for invalid rows.

        Any axes may follow the rows.
        """
        valid_BX = self.valid_B.reshape(-1, *[1] * (value_BX.dim() - 1))
        kept_BX = apply_mask(value_BX, valid_BX)
        total_GX = value_BX.new_zeros(self.n_groups + 1, *value_BX.shape[1:]).index_add_(
            0, self.index_B, kept_BX
        )
        return total_GX[self.index_B]

    def mean(self, value_B: torch.Tensor) -> torch.Tensor:
        """Return the mean over the group of each row; 0 for invalid rows."""
        return self.sum(value_B) / self.size_B.clamp_min(1)

    def std(self, value_B: torch.Tensor) -> torch.Tensor:
        """Return the standard deviation over the group of each row, with Bessel's correction.

        Return exactly 0 for constant groups: dividing by a rounding error would amplify it. Single
        and invalid rows have 0 as well.
        """
        squares_B = self.sum((value_B - self.mean(value_B)) ** 2)
        std_B = (squares_B / (self.size_B - 1).clamp_min(1)).sqrt()
        kept_B = apply_mask(value_B, self.valid_B)
        blank_G = kept_B.new_zeros(self.n_groups + 1)
        low_G = blank_G.scatter_reduce(0, self.index_B, kept_B, "amin", include_self=False)
        high_G = blank_G.scatter_reduce(0, self.index_B, kept_B, "amax", include_self=False)
        return apply_mask(std_B, (low_G != high_G)[self.index_B])

    def pad_groups(self, value_B: torch.Tensor, fill: float) -> torch.Tensor:
        """Return the values of each group's members, ``(G, N)``, padded with ``fill``."""
        order_N = torch.argsort(self.index_B, stable=True)[: int(self.valid_B.sum())]
        largest = int(self.size_B.max()) if len(order_N) else 0
        is_member_GN = (
            torch.arange(largest, device=order_N.device)
            < torch.bincount(self.index_B[order_N])[:, None]
        )
        return torch.full_like(is_member_GN, fill, dtype=value_B.dtype).masked_scatter_(
            is_member_GN, value_B[order_N]
        )
