# SPDX-License-Identifier: Apache-2.0
"""ProcessBench's metrics, pairwise accuracy, and intervals by resampling problems. Pure functions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

StepScores = Sequence[float] | None


def first_error(scores: StepScores, threshold: float) -> int | None:
    """Index of the first step whose score is below the threshold (strictly), -1 if none is; None without scores."""
    if scores is None:
        return None
    return next((step for step, score in enumerate(scores) if score < threshold), -1)


@dataclass(frozen=True)
class ProcessBenchScore:
    """Accuracies of one split, as fractions.

    Attributes:
        error_accuracy: share of erroneous responses whose first wrong step is found exactly.
        correct_accuracy: share of correct responses in which no step is judged wrong.
        f1: their harmonic mean; 0 if both are 0 or a class is empty.
    """

    error_accuracy: float
    correct_accuracy: float
    f1: float


def harmonic_mean(first: float, second: float) -> float:
    """2ab / (a + b), 0 if both are 0."""
    return 2 * first * second / (first + second) if first + second > 0 else 0.0


def processbench_score(predictions: Sequence[int | None], labels: Sequence[int]) -> ProcessBenchScore:
    """Score predictions of the first wrong step (arXiv 2412.06559). A prediction of None is wrong.

    Raises:
        ValueError: not as many predictions as labels.
    """
    error = [p == y for p, y in zip(predictions, labels, strict=True) if y != -1]
    correct = [p == y for p, y in zip(predictions, labels, strict=True) if y == -1]
    error_accuracy = sum(error) / len(error) if error else 0.0
    correct_accuracy = sum(correct) / len(correct) if correct else 0.0
    return ProcessBenchScore(error_accuracy, correct_accuracy, harmonic_mean(error_accuracy, correct_accuracy))


def _descents(scores: StepScores) -> list[tuple[float, int]]:
    """Steps that are lower than all before them: the only ones that can be the first below a threshold."""
    found, lowest = [], math.inf
    for step, score in enumerate(scores or []):
        if score < lowest:
            found.append((score, step))
            lowest = score
    return found


def fit_threshold(scores: Sequence[StepScores], labels: Sequence[int]) -> tuple[float, float]:
    """The threshold with the best F1 on these responses, and that F1.

    All thresholds are tried, not a grid: the predictions change only where the threshold passes a score that is lower
    than all before it in its response. The threshold is the middle of the best interval, the lowest one of equals.

    Raises:
        ValueError: no response has a score.
    """
    events = sorted((value, row, step) for row, own in enumerate(scores) for value, step in _descents(own))
    if not events:
        raise ValueError("no response has a step score to fit a threshold on")
    judged = [-1 if own is not None else None for own in scores]
    n_error = sum(y != -1 for y in labels)
    n_correct = len(labels) - n_error
    right = {True: 0, False: sum(p == y for p, y in zip(judged, labels, strict=True) if y == -1)}
    best, best_threshold = 0.0, events[0][0]
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
            best, best_threshold = f1, middle if value < middle <= following else following
    return best_threshold, best


@dataclass(frozen=True)
class Interval:
    """Standard error and 95 % interval from resampled problems."""

    standard_error: float
    low: float
    high: float


def _interval(values: np.ndarray) -> Interval:
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(float(values.std(ddof=1)), float(low), float(high))


def resampled_f1(predictions: Sequence[int | None], labels: Sequence[int], resamples: int, seed: int) -> np.ndarray:
    """F1 of every resample of the responses, with the predictions (and so the threshold) held fixed."""
    label = np.array(labels)
    right = np.array([p == y for p, y in zip(predictions, labels, strict=True)])
    rng = np.random.default_rng(seed)
    values = np.empty(resamples)
    for number in range(resamples):
        rows = rng.integers(0, len(label), len(label))
        erroneous, hit = label[rows] != -1, right[rows]
        error = hit[erroneous].mean() if erroneous.any() else 0.0
        correct = hit[~erroneous].mean() if (~erroneous).any() else 0.0
        values[number] = harmonic_mean(float(error), float(correct))
    return values


def f1_interval(predictions: Sequence[int | None], labels: Sequence[int], resamples: int, seed: int) -> Interval:
    """Interval of a split's F1."""
    return _interval(resampled_f1(predictions, labels, resamples, seed))


def average_interval(samples: Sequence[np.ndarray]) -> Interval:
    """Interval of the plain average over splits, each resampled on its own."""
    return _interval(np.mean(samples, axis=0))


def ordered_pairs(scores: Sequence[float], correct: Sequence[bool]) -> tuple[float, int]:
    """Pairs of a correct and a wrong response with the correct one ahead, a tie counting 1/2, and all such pairs."""
    right = [score for score, hit in zip(scores, correct, strict=True) if hit]
    wrong = [score for score, hit in zip(scores, correct, strict=True) if not hit]
    return sum((a > b) + 0.5 * (a == b) for a in right for b in wrong), len(right) * len(wrong)


def pairwise_accuracy(counts: Sequence[tuple[float, int]], resamples: int, seed: int) -> tuple[float, Interval] | None:
    """Share of ordered pairs, pooled over problems, with an interval by resampling problems; None without a pair.

    Args:
        counts: of :func:`ordered_pairs` for each problem.
    """
    table = np.array([pair for pair in counts if pair[1]], dtype=float)
    if not len(table):
        return None
    rows = np.random.default_rng(seed).integers(0, len(table), (resamples, len(table)))
    sums = table[rows].sum(1)
    return float(table[:, 0].sum() / table[:, 1].sum()), _interval(sums[:, 0] / sums[:, 1])


def mean_interval(values: Sequence[float], resamples: int, seed: int) -> tuple[float, Interval]:
    """Mean over problems with its bootstrap interval."""
    array = np.array(values, dtype=float)
    rows = np.random.default_rng(seed).integers(0, len(array), (resamples, len(array)))
    return float(array.mean()), _interval(array[rows].mean(1))
