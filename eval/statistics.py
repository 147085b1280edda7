# SPDX-License-Identifier: Apache-2.0
"""Scores of a benchmark with uncertainty: mean, pass@k, maj@k, two runs. Pure functions.

A benchmark is a sample of problems. Responses to one problem resemble each other, so the unit is
the problem: each counts the same, and the standard error is that of a mean over problems (arXiv
2411.00640, section 2.2).

The 95 % interval is Wilson's with the effective number of trials ``p (1 - p) / SE^2`` and Student's
quantile, as surveys with clusters use it (Franco, Little, Louis, Slud, J. Surv. Stat. Methodol. 7,
2019). Unlike ``p +- 1.96 SE`` it stays within [0, 1], is not empty at 0 and 1, and keeps its
coverage with the 30 problems of AIME.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypedDict

import numpy as np
from scipy.stats import t as student

from prime_ext.tasks.votes import Ballot, Same

CONFIDENCE = 0.95
# Standard error, low and high end; None with a single problem.
Interval = tuple[float | None, float | None, float | None]
# Of the responses of each problem, in [0, 1]; None where the grader could not decide.
Scores = Sequence[Sequence[float | None]]


class Estimate(TypedDict):
    """A score over problems, as a fraction, ready for JSON.

    ``value`` is the mean over ``problems``; ``standard_error`` and the ends of the 95 % interval
    are None with a single problem. ``left_out`` counts problems without enough judged responses,
    which are in no mean.
    """

    value: float
    standard_error: float | None
    low: float | None
    high: float | None
    problems: int
    left_out: int


def estimate_mean(values: Sequence[float], trials: float, left_out: int = 0) -> Estimate | None:
    """Return the mean of one value per problem, None without a value.

    Each is in [0, 1], else ValueError. ``trials`` are the independent right-or-wrong trials of all
    values together, the most that the effective number of trials can be. With every value 1, or 0,
    it is one trial per problem, as nothing is known of other problems.
    """
    scores = np.asarray(values, dtype=float)
    if scores.size == 0:
        return None
    if not (np.isfinite(scores).all() and scores.min() >= 0 and scores.max() <= 1):
        raise ValueError(f"scores must be in [0, 1], got {scores.min():g} to {scores.max():g}")
    mean = float(scores.mean())
    error = None
    low = None
    high = None
    if scores.size > 1:
        error = float(scores.std(ddof=1)) / math.sqrt(scores.size)
        low, high = _wilson(mean, error, scores.size, trials)
    return Estimate(
        value=mean,
        standard_error=error,
        low=low,
        high=high,
        problems=int(scores.size),
        left_out=left_out,
    )


def _quantile(freedom: float) -> float:
    """Return Student's quantile for both ends of an interval."""
    return float(student.ppf((1 + CONFIDENCE) / 2, freedom))


def _wilson(mean: float, error: float, problems: int, trials: float) -> tuple[float, float]:
    """Return Wilson's interval with the number of trials that would have this standard error."""
    spread = mean * (1 - mean)
    if spread == 0:
        effective = float(problems)
    else:
        effective = min(trials, spread / error**2) if error > 0 else trials
    ratio = _quantile(problems - 1) ** 2 / effective
    center = (mean + ratio / 2) / (1 + ratio)
    half = math.sqrt(ratio * spread + ratio**2 / 4) / (1 + ratio)
    return max(0.0, center - half), min(1.0, center + half)


def average(scores: Scores) -> Estimate | None:
    """Return avg@k, the mean score of a response; None where nothing was judged."""
    judged = [[score for score in values if score is not None] for values in scores]
    means = [sum(values) / len(values) for values in judged if values]
    return estimate_mean(means, sum(map(len, judged)), left_out=len(judged) - len(means))


def pass_probability(responses: int, correct: int, k: int) -> float:
    """Return the probability that ``k`` <= ``responses`` of the responses hold a correct one.

    They are drawn without replacement: ``1 - C(n - c, k) / C(n, k)``, the unbiased estimate of
    pass@k (arXiv 2107.03374, equation 1), in whole numbers.
    """
    subsets = math.comb(responses, k)
    return (subsets - math.comb(responses - correct, k)) / subsets


def pass_at_k(scores: Scores, k: int) -> Estimate | None:
    """Return unbiased pass@k; a response is correct if its score is 1.

    A problem with fewer than ``k`` judged responses is left out; None if all are. ValueError: ``k``
    is above n.
    """
    fewest = min(map(len, scores), default=0)
    if not 1 <= k <= fewest:
        raise ValueError(f"k={k} must be from 1 to the number of responses per problem, {fewest}")
    judged = [[score for score in values if score is not None] for values in scores]
    counted = [values for values in judged if len(values) >= k]
    values = [pass_probability(len(values), values.count(1.0), k) for values in counted]
    # Only disjoint draws are independent.
    return estimate_mean(
        values, sum(len(values) // k for values in counted), left_out=len(judged) - len(counted)
    )


# ---- maj@k: the answer that most of k responses give ---------------------------------------------


def majority_score(ballot: Ballot, k: int) -> float:
    """Return the expected score of the majority of ``k`` responses, exact over all draws.

    Draws are without replacement. Responses vote for the class of their answer, which has the mean
    score of its responses. Where nobody votes, the score is 0; a tie is the mean over its classes.
    For each class and each number m of its votes, the draws in which no other class has more than m
    are counted by the number of classes that tie with it.
    """
    total = 0.0
    subsets = math.comb(ballot.responses, k)
    for index, (votes, score) in enumerate(zip(ballot.votes, ballot.scores, strict=True)):
        if score == 0:
            continue
        others = tuple(sorted(ballot.votes[:index] + ballot.votes[index + 1 :]))
        for m in range(1, min(votes, k) + 1):
            ways = _count_draws(others, ballot.silent, k - m, m)
            # Exact whole numbers up to here: they exceed every float where k is large.
            total += score * sum(
                math.comb(votes, m) * number / subsets / (ties + 1)
                for ties, number in enumerate(ways)
            )
    return min(total, 1.0)


@lru_cache(maxsize=4096)
def _count_draws(others: tuple[int, ...], silent: int, drawn: int, most: int) -> tuple[int, ...]:
    """Count draws of ``drawn`` responses, ``most`` a class, by how many classes reach ``most``."""
    table = {(0, 0): 1}
    for votes in others:
        following: dict[tuple[int, int], int] = {}
        for (used, ties), number in table.items():
            for taken in range(min(votes, most, drawn - used) + 1):
                state = (used + taken, ties + (taken == most))
                following[state] = following.get(state, 0) + number * math.comb(votes, taken)
        table = following
    ways = [0] * (len(others) + 1)
    for (used, ties), number in table.items():
        ways[ties] += number * math.comb(silent, drawn - used)
    return tuple(ways)


def majority_at_k(ballots: Sequence[Ballot], k: int) -> Estimate | None:
    """Return maj@k over the problems with ``k`` judged responses or more; None without any."""
    counted = [ballot for ballot in ballots if ballot.responses >= k]
    values = [majority_score(ballot, k) for ballot in counted]
    trials = sum(ballot.responses // k for ballot in counted)
    return estimate_mean(values, trials, left_out=len(ballots) - len(counted))


def build_equality() -> Same:
    """Return the equality of mathematics: each answer is right where the other is the gold answer.

    Both ways, because the verifier lets an exact answer round to a gold decimal. What it cannot
    decide is different.
    """
    from prime_ext.verifiers.math import MathVerifier

    verifier = MathVerifier()

    def same(first: str, second: str) -> bool:
        if first.strip() == second.strip():
            return True
        if not first.strip() or not second.strip():
            return False
        return (
            verifier.verify_answer(second, first).correct
            and verifier.verify_answer(first, second).correct
        )

    return same


# ---- two runs on the same problems ---------------------------------------------------------------

ScoresByProblem = Mapping[str, Sequence[float | None]]


def compare_runs(before: ScoresByProblem, after: ScoresByProblem) -> dict[str, Any] | None:
    """Compare two runs on the same problems; None if no problem is judged in both.

    The numbers of responses may differ. Pairing takes the difficulty of the problems out of the
    noise (arXiv 2411.00640, section 4.2). The interval combines those of the two means by their
    correlation (Newcombe, Statistics in Medicine 17, 1998, method 10; Zou and Donner, 27, 2008):
    where neither run solves a problem it is as wide as theirs. The correlation is that over the
    problems and two more, on which the runs differ by one response in either direction, so that
    equal runs have an interval too.

    Returns:
        As fractions and ready for JSON: ``difference``, the mean over problems of the second score
        minus the first, its ``standard_error`` and the ends ``low`` and ``high`` of its 95 %
        interval (None with a single problem); ``problems`` that were counted, and those
        ``left_out`` because one of the runs could not judge them at all; ``gained`` and ``lost``,
        the problems that only the second or the first run solves (mean score above 1/2), each with
        its score ``before`` and ``after``.
    """
    pairs = {}
    fewest = math.inf
    trials = [0, 0]
    for problem in before:
        judged = [[score for score in run[problem] if score is not None] for run in (before, after)]
        if all(judged):
            pairs[problem] = (sum(judged[0]) / len(judged[0]), sum(judged[1]) / len(judged[1]))
            fewest = min(fewest, *map(len, judged))
            trials = [number + len(scores) for number, scores in zip(trials, judged, strict=True)]
    if not pairs:
        return None
    before_N, after_N = np.array(list(pairs.values())).T
    error, low, high = _difference_interval(before_N, after_N, trials, 1 / fewest)
    flips: list[dict[str, Any]] = [
        {"problem": problem, "before": first, "after": second}
        for problem, (first, second) in pairs.items()
        if (first > 0.5) != (second > 0.5)
    ]
    return {
        "difference": float((after_N - before_N).mean()),
        "standard_error": error,
        "low": low,
        "high": high,
        "problems": len(pairs),
        "left_out": len(before) - len(pairs),
        "gained": [flip for flip in flips if flip["after"] > 0.5],
        "lost": [flip for flip in flips if flip["before"] > 0.5],
    }


def _difference_interval(
    before: np.ndarray, after: np.ndarray, trials: Sequence[int], response: float
) -> Interval:
    """Return error and interval of the mean difference; one response counts ``response``."""
    if before.size == 1:
        return None, None, None
    error = float((after - before).std(ddof=1)) / math.sqrt(before.size)
    mean = float(after.mean())
    other = float(before.mean())
    low, high = _wilson(
        mean, float(after.std(ddof=1)) / math.sqrt(after.size), after.size, trials[1]
    )
    other_low, other_high = _wilson(
        other, float(before.std(ddof=1)) / math.sqrt(before.size), before.size, trials[0]
    )
    step = np.array([response, -response]) / 2
    correlation = np.corrcoef(np.append(before, other + step), np.append(after, mean - step))[0, 1]

    def combine(first: float, second: float) -> float:
        return math.sqrt(max(0.0, first**2 - 2 * correlation * first * second + second**2))

    below = combine(mean - low, other_high - other)
    above = combine(high - mean, other - other_low)
    return error, max(-1.0, mean - other - below), min(1.0, mean - other + above)
