# SPDX-License-Identifier: Apache-2.0
"""Scores of a benchmark with their intervals: mean, pass@k, maj@k, two runs. Pure functions."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from prime_ext.tasks.votes import Ballot, Same

from .intervals import Interval, compute_paired, compute_student, compute_wilson

# Of the responses to a problem, in [0, 1]; None where the grader could not decide.
Scores = Sequence[float | None]


class Estimate(Interval):
    """A score over problems, as a fraction, ready for JSON.

    ``value`` is the mean over ``problems``. ``left_out`` counts problems without enough judged
    responses, which are in no mean.
    """

    value: float
    problems: int
    left_out: int


def estimate_mean(values: Sequence[float], trials: float, left_out: int = 0) -> Estimate | None:
    """Return the mean of one value per problem, None without a value.

    Each is in [0, 1], else ValueError. :func:`eval.intervals.compute_wilson` describes ``trials``.
    """
    scores = np.asarray(values, dtype=float)
    if scores.size == 0:
        return None
    if not (np.isfinite(scores).all() and scores.min() >= 0 and scores.max() <= 1):
        raise ValueError(f"scores must be in [0, 1], got {scores.min():g} to {scores.max():g}")
    return Estimate(
        value=float(scores.mean()),
        **compute_wilson(scores, trials),
        problems=int(scores.size),
        left_out=left_out,
    )


def estimate_any_mean(values: Sequence[float], left_out: int = 0) -> Estimate | None:
    """Return the mean of one number per problem, None without a number."""
    numbers = np.asarray(values, dtype=float)
    if numbers.size == 0:
        return None
    return Estimate(
        value=float(numbers.mean()),
        **compute_student(numbers),
        problems=int(numbers.size),
        left_out=left_out,
    )


def average(scores: Sequence[Scores]) -> Estimate | None:
    """Return avg@k, the mean score of a response; None where nothing was judged."""
    judged = [[score for score in values if score is not None] for values in scores]
    means = [sum(values) / len(values) for values in judged if values]
    return estimate_mean(means, sum(map(len, judged)), left_out=len(judged) - len(means))


def compute_pass_probability(responses: int, correct: int, k: int) -> float:
    """Return the probability that ``k`` <= ``responses`` of the responses hold a correct one.

    They are drawn without replacement: ``1 - C(n - c, k) / C(n, k)``, the unbiased estimate of
    pass@k (arXiv 2107.03374, equation 1), in whole numbers.
    """
    subsets = math.comb(responses, k)
    return (subsets - math.comb(responses - correct, k)) / subsets


def estimate_pass_at_k(scores: Sequence[Scores], k: int) -> Estimate | None:
    """Return unbiased pass@k; a response is correct if its score is 1.

    A problem with fewer than ``k`` judged responses is left out; None if all are. ValueError: ``k``
    is above n.
    """
    fewest = min(map(len, scores), default=0)
    if not 1 <= k <= fewest:
        raise ValueError(f"k={k} must be from 1 to the number of responses per problem, {fewest}")
    judged = [[score for score in values if score is not None] for values in scores]
    counted = [values for values in judged if len(values) >= k]
    values = [compute_pass_probability(len(values), values.count(1.0), k) for values in counted]
    # Only disjoint draws are independent.
    return estimate_mean(
        values, sum(len(values) // k for values in counted), left_out=len(judged) - len(counted)
    )


# ---- maj@k: the answer that most of k responses give ---------------------------------------------


def compute_majority_score(ballot: Ballot, k: int) -> float:
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


def estimate_majority_at_k(ballots: Sequence[Ballot], k: int) -> Estimate | None:
    """Return maj@k over the problems with ``k`` judged responses or more; None without any."""
    counted = [ballot for ballot in ballots if ballot.responses >= k]
    values = [compute_majority_score(ballot, k) for ballot in counted]
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


def compare_runs(
    before: Mapping[str, Scores], after: Mapping[str, Scores]
) -> dict[str, Any] | None:
    """Compare two runs on the same problems; None if no problem is judged in both.

    The numbers of responses may differ. :func:`eval.intervals.compute_paired` has the method.

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
    flips: list[dict[str, Any]] = [
        {"problem": problem, "before": first, "after": second}
        for problem, (first, second) in pairs.items()
        if (first > 0.5) != (second > 0.5)
    ]
    return {
        "difference": float((after_N - before_N).mean()),
        **compute_paired(before_N, after_N, trials, 1 / fewest),
        "problems": len(pairs),
        "left_out": len(before) - len(pairs),
        "gained": [flip for flip in flips if flip["after"] > 0.5],
        "lost": [flip for flip in flips if flip["before"] > 0.5],
    }
