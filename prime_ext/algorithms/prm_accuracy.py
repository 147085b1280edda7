# SPDX-License-Identifier: Apache-2.0
"""Accuracy of the implicit PRM in ordering and classifying finished responses."""

from typing import NamedTuple

import torch

from prime_ext.algorithms.groups import PromptGroups


class PairCount(NamedTuple):
    """Pairs of responses to a prompt with different outcomes, weighted by the label difference."""

    right: float
    """Pairs that the score orders correctly; a tie counts 1/2."""
    total: float

    @property
    def accuracy(self) -> float | None:
        """Return the share in the right order; None without any pair."""
        return self.right / self.total if self.total else None


def count_pairs(score_B: torch.Tensor, label_B: torch.Tensor, group_B: torch.Tensor) -> PairCount:
    """Count pairs that the score orders correctly, and all pairs, pooled over the groups.

    ``score_B`` is for example the summed log-ratio, ``label_B`` the outcome in [0, 1], ``group_B``
    the prompt. A PRM that still equals its reference has the accuracy 1/2; the published code calls
    ties wrong.
    """
    groups = PromptGroups.build(group_B, torch.ones_like(group_B, dtype=torch.bool))
    # Comparisons with NaN are False, so the padding forms no pair.
    label_GN = groups.pad_groups(label_B, float("nan"))
    score_GN = groups.pad_groups(score_B, 0.0)
    better_GNN = label_GN[:, :, None] > label_GN[:, None, :]
    weight_GNN = torch.where(
        better_GNN, label_GN[:, :, None] - label_GN[:, None, :], label_B.new_zeros(())
    )
    left_GNN = score_GN[:, :, None]
    right_GNN = score_GN[:, None, :]
    right_order_GNN = (left_GNN > right_GNN) + 0.5 * (left_GNN == right_GNN)
    return PairCount(float((weight_GNN * right_order_GNN).sum()), float(weight_GNN.sum()))


def absolute_accuracy(score_B: torch.Tensor, label_B: torch.Tensor) -> float:
    """Return the share of responses whose score is above 0 exactly if the outcome is above 1/2."""
    return float(((score_B > 0) == (label_B > 0.5)).float().mean())
