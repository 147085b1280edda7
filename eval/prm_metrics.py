# SPDX-License-Identifier: Apache-2.0
"""Metrics of process reward models (PRMs), with intervals by resampling problems. Pure functions.

- ProcessBench: F1 of finding the first wrong step, and the best threshold.
- PRMBench: the mean of the F1 of right and of wrong steps.
- Pairs: how often a correct response is ahead of a wrong one.
- Best-of-N: the expectation over a random subset of N of the n candidates, drawn without
  replacement, so that the order of the candidates does not matter and all of them are used for
  every N. pass@N and maj@N: :mod:`eval.statistics`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .intervals import compute_percentiles, resample

# One score of a response from those of its steps.
AGGREGATIONS: dict[str, Callable[[np.ndarray], float]] = {
    "min": np.min,
    "sum": np.sum,
    "last": lambda scores: scores[-1],
    "mean": np.mean,
    "product": np.prod,
}


# ---- ProcessBench (arXiv 2412.06559) -------------------------------------------------------------


def find_error(scores: Sequence[float] | None, threshold: float) -> int | None:
    """Return the first step scored strictly below the threshold, else -1; None without scores."""
    if scores is None:
        return None
    return next((step for step, score in enumerate(scores) if score < threshold), -1)


def harmonic_mean(first: float, second: float) -> float:
    """Return 2ab / (a + b), 0 if both are 0."""
    return 2 * first * second / (first + second) if first + second > 0 else 0.0


def score_processbench(
    predictions: Sequence[int | None], labels: Sequence[int]
) -> dict[str, float]:
    """Score predictions of the first wrong step for the responses of one split.

    A prediction of None is wrong. Returns, as fractions, ``error_accuracy`` (erroneous responses
    whose first wrong step is found exactly), ``correct_accuracy`` (correct responses without a step
    judged wrong), and ``f1``, their harmonic mean. A class without a response has 0.
    """
    error = [p == y for p, y in zip(predictions, labels, strict=True) if y != -1]
    correct = [p == y for p, y in zip(predictions, labels, strict=True) if y == -1]
    shares = [sum(hits) / len(hits) if hits else 0.0 for hits in (error, correct)]
    return {
        "error_accuracy": shares[0],
        "correct_accuracy": shares[1],
        "f1": harmonic_mean(*shares),
    }


def _find_descents(scores: Sequence[float] | None) -> list[tuple[float, int]]:
    """Return score and number of the steps that have a lower score than all before them."""
    # Only these steps can be the first below a threshold.
    descents = []
    lowest = math.inf
    for step, score in enumerate(scores or []):
        if score < lowest:
            descents.append((score, step))
            lowest = score
    return descents


def fit_threshold(
    scores: Sequence[Sequence[float] | None], labels: Sequence[int]
) -> tuple[float, float]:
    """Return the threshold with the best F1 on these responses, and that F1.

    All thresholds are tried, not a grid: the predictions change only where the threshold passes a
    score that is lower than all before it in its response. The threshold is the middle of the best
    interval, the lowest one of equals. Raises ValueError: no response has a score.
    """
    events = sorted(
        (value, row, step)
        for row, steps in enumerate(scores)
        for value, step in _find_descents(steps)
    )
    if not events:
        raise ValueError("no response has a step score to fit a threshold on")
    judged = [-1 if steps is not None else None for steps in scores]
    n_error = sum(y != -1 for y in labels)
    n_correct = len(labels) - n_error
    right = {True: 0, False: sum(p == y for p, y in zip(judged, labels, strict=True) if y == -1)}
    best = 0.0
    best_threshold = events[0][0]
    for position, (value, row, step) in enumerate(events):
        erroneous = labels[row] != -1
        right[erroneous] += (step == labels[row]) - (judged[row] == labels[row])
        judged[row] = step
        following = events[position + 1][0] if position + 1 < len(events) else value + 1.0
        if following == value:
            continue
        f1 = harmonic_mean(right[True] / max(1, n_error), right[False] / max(1, n_correct))
        if f1 > best:
            middle = (value + following) / 2
            best = f1
            best_threshold = middle if value < middle <= following else following
    return best_threshold, best


def resample_f1(
    predictions: Sequence[int | None], labels: Sequence[int], resamples: int, seed: int
) -> np.ndarray:
    """Return F1 of every resample of the responses; predictions and threshold stay fixed."""
    erroneous = np.array(labels) != -1
    right = np.array([p == y for p, y in zip(predictions, labels, strict=True)])
    rows = resample(len(right), resamples, seed)
    classes = (erroneous[rows], ~erroneous[rows])
    error, correct = ((right[rows] & mask).sum(1) / np.maximum(1, mask.sum(1)) for mask in classes)
    total = error + correct
    return np.divide(2 * error * correct, total, out=np.zeros(resamples), where=total > 0)


# ---- PRMBench (arXiv 2501.03124) -----------------------------------------------------------------


def count_steps(
    scores: Sequence[float], right: Sequence[bool], threshold: float
) -> tuple[int, int, int, int]:
    """Count right steps judged right and wrong, then wrong steps judged right and wrong.

    A step is judged right if its score is above the threshold (strictly), as in the released code.
    """
    judged = np.asarray(scores) > threshold
    is_right = np.asarray(right, dtype=bool)
    groups = (is_right & judged, is_right & ~judged, ~is_right & judged, ~is_right & ~judged)
    return tuple(int(group.sum()) for group in groups)


def compute_prm_score(count_X4: np.ndarray) -> dict[str, np.ndarray]:
    """Return ``f1`` of right steps, ``negative_f1`` of wrong steps, and ``prm_score``, their mean.

    ``count_X4`` has the counts of :func:`count_steps`. Where no step is wrong (as in the class
    multi_solutions), ``prm_score`` is ``f1``, as on the leaderboard.
    """
    kept_X, missed_X, passed_X, found_X = np.moveaxis(np.asarray(count_X4, dtype=float), -1, 0)
    errors_X = missed_X + passed_X
    f1_X = 2 * kept_X / np.maximum(2 * kept_X + errors_X, 1)
    negative_f1_X = 2 * found_X / np.maximum(2 * found_X + errors_X, 1)
    score_X = np.where(passed_X + found_X > 0, (f1_X + negative_f1_X) / 2, f1_X)
    return {"f1": f1_X, "negative_f1": negative_f1_X, "prm_score": score_X}


def find_best_prm_score(
    scores: Sequence[Sequence[float]], right: Sequence[Sequence[bool]]
) -> tuple[float, float]:
    """Return the threshold with the best PRMScore on these steps, and that score."""
    score_N = np.concatenate(scores)
    right_N = np.concatenate(right).astype(bool)
    threshold_M = np.append(np.nextafter(score_N.min(), -np.inf), np.unique(score_N))
    missed_M, found_M = (
        np.searchsorted(np.sort(score_N[mask]), threshold_M, "right")
        for mask in (right_N, ~right_N)
    )
    count_M4 = np.stack(
        [right_N.sum() - missed_M, missed_M, (~right_N).sum() - found_M, found_M], -1
    )
    score_M = compute_prm_score(count_M4)["prm_score"]
    best = score_M.argmax()
    return float(threshold_M[best]), float(score_M[best])


# ---- pairs ---------------------------------------------------------------------------------------


def count_ordered_pairs(scores: Sequence[float], correct: Sequence[bool]) -> tuple[float, int]:
    """Count pairs with the correct response ahead of the wrong one (1/2 for a tie), and all."""
    right = [score for score, hit in zip(scores, correct, strict=True) if hit]
    wrong = [score for score, hit in zip(scores, correct, strict=True) if not hit]
    return sum((a > b) + 0.5 * (a == b) for a in right for b in wrong), len(right) * len(wrong)


def pairwise_accuracy(
    counts: Sequence[tuple[float, int]], resamples: int, seed: int
) -> dict[str, Any] | None:
    """Return ``value``, the share of ordered pairs, pooled over problems, with its interval.

    ``counts`` are those of :func:`count_ordered_pairs` by problem, ``pairs`` is their number. The
    interval is that of resampled problems. None without a pair.
    """
    table = np.array([pair for pair in counts if pair[1]], dtype=float)
    if not len(table):
        return None
    sums = table[resample(len(table), resamples, seed)].sum(1)
    value = float(table[:, 0].sum() / table[:, 1].sum())
    return {
        "value": value,
        **compute_percentiles(sums[:, 0] / sums[:, 1]),
        "pairs": sum(n for _, n in counts),
    }


# ---- candidates ----------------------------------------------------------------------------------


def compute_best_of(scores: Sequence[float], correct: Sequence[bool], draws: int) -> float:
    """Return the probability that the best-scored of ``draws`` candidates is correct.

    Ties break at random. The highest of the subset is among the k lowest of the pool with
    probability C(k, N) / C(n, N); the difference between one score and the next lower one is shared
    equally by the candidates with that score.
    """
    array = np.asarray(scores, dtype=float)
    hit = np.asarray(correct, dtype=float)
    total = math.comb(len(scores), draws)
    expected = 0.0
    below = 0
    for score in np.unique(array):
        tied = array == score
        upto = below + int(tied.sum())
        expected += (math.comb(upto, draws) - math.comb(below, draws)) / total * hit[tied].mean()
        below = upto
    return expected
