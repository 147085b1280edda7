# SPDX-License-Identifier: Apache-2.0
"""Standard errors and 95 % intervals over problems. Pure functions.

A benchmark is a sample of problems. Responses to one problem resemble each other, so the unit is
the problem: each counts the same, and the standard error is that of a mean over problems (arXiv
2411.00640, section 2.2).

Scores in [0, 1] have Wilson's interval with the effective number of trials ``p (1 - p) / SE^2`` and
Student's quantile, as surveys with clusters use it (Franco, Little, Louis, Slud, J. Surv. Stat.
Methodol. 7, 2019). Unlike ``p +- 1.96 SE`` it stays within [0, 1], is not empty at 0 and 1, and
keeps its coverage with the 30 problems of AIME. Means of other numbers, such as rewards, have
Student's interval. Measures that are not means, such as F1, have the percentiles of resampled
problems.
"""

import math
from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from scipy.stats import t as student

CONFIDENCE = 0.95


class Interval(TypedDict):
    """Standard error and ends of the 95 % interval, ready for JSON; None with a single problem."""

    standard_error: float | None
    low: float | None
    high: float | None


UNKNOWN = Interval(standard_error=None, low=None, high=None)


def compute_error(values: np.ndarray) -> float:
    """Return the standard error of the mean of two values or more."""
    return float(values.std(ddof=1)) / math.sqrt(values.size)


def compute_wilson(values: np.ndarray, trials: float) -> Interval:
    """Return the interval of the mean of one value in [0, 1] per problem.

    ``trials`` are the independent right-or-wrong trials of all values together, the most that the
    effective number of trials can be. With every value 1, or 0, it is one trial per problem, as
    nothing is known of other problems.
    """
    if values.size == 1:
        return UNKNOWN
    mean = float(values.mean())
    error = compute_error(values)
    spread = mean * (1 - mean)
    effective = trials
    if spread == 0:
        effective = float(values.size)
    elif error > 0:
        effective = min(trials, spread / error**2)
    ratio = float(student.ppf((1 + CONFIDENCE) / 2, values.size - 1)) ** 2 / effective
    center = (mean + ratio / 2) / (1 + ratio)
    half = math.sqrt(ratio * spread + ratio**2 / 4) / (1 + ratio)
    return Interval(standard_error=error, low=max(0.0, center - half), high=min(1.0, center + half))


def compute_student(values: np.ndarray) -> Interval:
    """Return Student's interval of the mean of one value per problem, which may be any number."""
    if values.size == 1:
        return UNKNOWN
    mean = float(values.mean())
    error = compute_error(values)
    half = float(student.ppf((1 + CONFIDENCE) / 2, values.size - 1)) * error
    return Interval(standard_error=error, low=mean - half, high=mean + half)


def compute_paired(
    before: np.ndarray, after: np.ndarray, trials: Sequence[float], response: float
) -> Interval:
    """Return the interval of the mean difference of two values per problem.

    Pairing takes the difficulty of the problems out of the noise (arXiv 2411.00640, section 4.2).
    The interval combines those of the two means by their correlation (Newcombe, Statistics in
    Medicine 17, 1998, method 10; Zou and Donner, 27, 2008): where neither run solves a problem it
    is as wide as theirs. The correlation is that over the problems and two more, on which the runs
    differ by ``response``, the weight of one response, in either direction, so that equal runs have
    an interval too. ``trials`` are those of :func:`compute_wilson` before and after.
    """
    if before.size == 1:
        return UNKNOWN
    first, second = (
        compute_wilson(values, number)
        for values, number in zip((before, after), trials, strict=True)
    )
    first_mean = float(before.mean())
    second_mean = float(after.mean())
    step = np.array([response, -response]) / 2
    correlation = np.corrcoef(
        np.append(before, first_mean + step), np.append(after, second_mean - step)
    )[0, 1]

    def combine(left: float, right: float) -> float:
        return math.sqrt(max(0.0, left**2 - 2 * correlation * left * right + right**2))

    difference = second_mean - first_mean
    below = combine(second_mean - second["low"], first["high"] - first_mean)
    above = combine(second["high"] - second_mean, first_mean - first["low"])
    return Interval(
        standard_error=compute_error(after - before),
        low=max(-1.0, difference - below),
        high=min(1.0, difference + above),
    )


# ---- resampled problems --------------------------------------------------------------------------


def resample(n: int, resamples: int, seed: int) -> np.ndarray:
    """Return indices of ``n`` items, drawn with replacement, one row for each resample."""
    return np.random.default_rng(seed).integers(0, n, (resamples, n))


def compute_percentiles(values: np.ndarray) -> Interval:
    """Return the standard error and the 95 % interval that resampled values span."""
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(standard_error=float(values.std(ddof=1)), low=float(low), high=float(high))


def resample_mean(values: Sequence[float], resamples: int, seed: int) -> dict[str, float | None]:
    """Return ``value``, the mean over problems, with its interval."""
    array = np.array(values, dtype=float)
    means = array[resample(len(array), resamples, seed)].mean(1)
    return {"value": float(array.mean()), **compute_percentiles(means)}
