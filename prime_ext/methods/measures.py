# SPDX-License-Identifier: Apache-2.0
"""Metrics of a scorer of rollouts: sums of its rewards, and how well they order responses."""

import torch

from prime_ext.algorithms.prm_accuracy import PairCount, count_pairs
from prime_ext.methods.rollouts import Rollouts


def measure_sums(rollouts: Rollouts, total_B: torch.Tensor) -> dict[str, float]:
    """Return statistics of responses' summed process rewards; ``total_B`` includes padding."""
    total_B = total_B[rollouts.valid_B]
    label_B = rollouts.label_B[rollouts.valid_B]
    if not len(total_B):
        return {}
    metrics = {"prm/reward_sum/mean": float(total_B.mean())}
    metrics["prm/reward_sum/std"] = float(total_B.std()) if len(total_B) > 1 else 0.0
    for name, rows_B in (("correct", label_B > 0.5), ("wrong", label_B <= 0.5)):
        if rows_B.any():
            metrics[f"prm/reward_sum/{name}"] = float(total_B[rows_B].mean())
    return metrics


def measure_pairs(
    rollouts: Rollouts, score_B: torch.Tensor, when: str, group_B: torch.Tensor | None = None
) -> tuple[PairCount, dict[str, float]]:
    """Count the pairs of a group that the scores order correctly; return them and metrics.

    ``when`` is ``before`` or ``after`` the update.
    """
    rows_B = rollouts.valid_B
    group_B = rollouts.group_B if group_B is None else group_B
    pairs = count_pairs(score_B[rows_B], rollouts.label_B[rows_B], group_B[rows_B])
    if pairs.accuracy is None:
        return pairs, {}
    return pairs, {f"prm/pair_accuracy/{when}_update": pairs.accuracy}
