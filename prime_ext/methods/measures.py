# SPDX-License-Identifier: Apache-2.0
"""Metrics of rollouts and of their scores: pairs in order, sums, steps, turns."""

import logging

import torch

from prime_ext.algorithms.prm_accuracy import PairCount, count_pairs
from prime_ext.methods.rollouts import Rollouts, Steps, Turns

logger = logging.getLogger(__name__)


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


def measure_steps(rollouts: Rollouts, steps: Steps | None) -> dict[str, float]:
    """Count the steps of responses."""
    if steps is None or not rollouts.valid_B.any():
        return {}
    count_B = steps.spans.count_B[rollouts.valid_B].float()
    metrics = {
        "prime/steps/mean": float(count_B.mean()),
        "prime/steps/max": float(count_B.max()),
    }
    return {**metrics, "prime/steps/timed_out": steps.timed_out}


def measure_turns(rollouts: Rollouts, turns: Turns | None) -> dict[str, float]:
    """Count the turns of responses, and average the sums of their rewards."""
    valid_B = rollouts.valid_B
    if turns is None or not valid_B.any():
        return {}
    end_BT = turns.end_BT & rollouts.mask_BT.bool()
    count_B = end_BT.sum(-1)[valid_B].float()
    metrics = {"prime/turns/mean": float(count_B.mean()), "prime/turns/max": float(count_B.max())}
    if turns.reward_BT is not None:
        metrics["prime/turns/reward"] = float((turns.reward_BT * end_BT).sum(-1)[valid_B].mean())
    return metrics


def count_lonely(rollouts: Rollouts) -> dict[str, float]:
    """Count the rollouts that are alone in their group, so that they have no baseline."""
    groups_N = rollouts.group_B[rollouts.valid_B]
    alone = int((groups_N.unique(return_counts=True)[1] == 1).sum())
    if alone:
        logger.warning("%d rollouts are alone in their group: no baseline, no advantage", alone)
    return {"prime/rollouts_without_baseline": alone}
