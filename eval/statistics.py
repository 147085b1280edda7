# SPDX-License-Identifier: Apache-2.0
"""Scores of a benchmark with their uncertainty: mean, unbiased pass@k. Pure functions.

What is estimated is the score on the population of problems from which the benchmark is a sample. Responses to one
problem resemble each other, so the unit of everything here is the problem, never the response: every problem counts the
same, however many responses it has, and the standard error is that of a mean over problems (clustered by problem,
arXiv 2411.00640, section 2.2). More responses per problem make it smaller only as far as they make the mean of each
problem more certain.

The 95 % interval is Wilson's with the effective number of trials ``p (1 - p) / SE^2`` and Student's quantile, as
surveys with clusters use it (Franco, Little, Louis, Slud, J. Surv. Stat. Methodol. 7, 2019). Unlike ``p +- 1.96 SE`` it
stays within [0, 1], is not empty at 0 and 1, and keeps its coverage with the 30 problems of AIME.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A score over problems, as a fraction.

    Attributes:
        value: mean over problems.
        standard_error: of the mean; None with a single problem, from which no spread is known.
        low: lower end of the 95 % interval, None with a single problem.
        high: upper end.
        problems: that were counted.
        left_out: problems without enough judged responses; they are in no mean.
    """

    value: float
    standard_error: float | None
    low: float | None
    high: float | None
    problems: int
    left_out: int = 0


class NoProblems(ValueError):
    """There is nothing to average; the message says why."""


def over_problems(values: Sequence[float], trials: float, left_out: int = 0) -> Estimate:
    """The mean of one value per problem, each in [0, 1].

    Args:
        values: one per problem.
        trials: independent right-or-wrong trials behind all values together, the most that the effective number of
            trials can be. It decides where the problems have no spread: with every value 1 the interval starts where it
            would for one trial per problem, as nothing is known of the other problems.
        left_out: see :class:`Estimate`.

    Raises:
        NoProblems: no value.
        ValueError: a value outside [0, 1], or fewer trials than problems.
    """
    scores = np.asarray(values, dtype=float)
    if scores.size == 0:
        raise NoProblems(f"no problem has enough judged responses ({left_out} left out)")
    if not (np.isfinite(scores).all() and scores.min() >= 0 and scores.max() <= 1):
        raise ValueError(f"scores must be in [0, 1], got {scores.min():g} to {scores.max():g}")
    if trials < scores.size:
        raise ValueError(f"{trials:g} trials for {scores.size} problems; there is at least one each")
    mean = float(scores.mean())
    if scores.size == 1:
        return Estimate(mean, None, None, None, 1, left_out)
    error = float(scores.std(ddof=1)) / math.sqrt(scores.size)
    low, high = _wilson(mean, error, scores.size, trials)
    return Estimate(mean, error, low, high, int(scores.size), left_out)


def _wilson(mean: float, error: float, problems: int, trials: float) -> tuple[float, float]:
    """Wilson's interval with the number of trials that would have this standard error."""
    spread = mean * (1 - mean)
    if spread == 0:
        effective = float(problems)
    else:
        effective = min(trials, spread / error**2) if error > 0 else trials
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, problems - 1))
    ratio = quantile**2 / effective
    centre = (mean + ratio / 2) / (1 + ratio)
    half = math.sqrt(ratio * spread + ratio**2 / 4) / (1 + ratio)
    return max(0.0, centre - half), min(1.0, centre + half)


def average(scores: Sequence[Sequence[float | None]]) -> Estimate:
    """avg@k: the mean score of a response. Of a greedy run it is the greedy score.

    Args:
        scores: of the responses of each problem, in [0, 1]; None where the grader could not decide.

    Raises:
        NoProblems: no response of any problem was judged.
    """
    judged = [[score for score in own if score is not None] for own in scores]
    means = [sum(own) / len(own) for own in judged if own]
    return over_problems(means, sum(map(len, judged)), left_out=len(judged) - len(means))


def pass_probability(responses: int, correct: int, k: int) -> float:
    """Probability that ``k`` of the responses, drawn without replacement, hold a correct one.

    ``1 - C(n - c, k) / C(n, k)``, the unbiased estimate of pass@k (arXiv 2107.03374, equation 1), in whole numbers.

    Raises:
        ValueError: ``k`` responses cannot be drawn.
    """
    if not 1 <= k <= responses or not 0 <= correct <= responses:
        raise ValueError(f"k={k} must be from 1 to the {responses} responses, of which {correct} are correct")
    subsets = math.comb(responses, k)
    return (subsets - math.comb(responses - correct, k)) / subsets


def pass_at_k(scores: Sequence[Sequence[float | None]], k: int) -> Estimate:
    """Unbiased pass@k; a response is correct if its score is 1.

    Args:
        scores: see :func:`average`. A problem with fewer than ``k`` judged responses is left out.
        k: responses of which one must be correct.

    Raises:
        ValueError: a problem has fewer than ``k`` responses.
        NoProblems: no problem has ``k`` judged responses.
    """
    fewest = min(map(len, scores), default=0)
    if not 1 <= k <= fewest:
        raise ValueError(f"k={k} must be from 1 to the number of responses per problem, {fewest}")
    judged = [[score for score in own if score is not None] for own in scores]
    counted = [own for own in judged if len(own) >= k]
    values = [pass_probability(len(own), own.count(1.0), k) for own in counted]
    # Only disjoint draws are independent.
    return over_problems(values, sum(len(own) // k for own in counted), left_out=len(judged) - len(counted))
