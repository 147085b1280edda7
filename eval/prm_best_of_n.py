# SPDX-License-Identifier: Apache-2.0
"""Best-of-N, votes and pass@N from a pool of scored candidates, averaged over subsets of the pool. Pure functions.

Everything is the expectation over a random subset of N of the n candidates, drawn without replacement, so that the
order of the candidates does not matter and all of them are used for every N. Best-of-N and pass@N have closed forms.
Votes are averaged over all subsets where there are few of them, and over random ones otherwise.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

AGGREGATIONS = ("min", "sum", "last", "mean", "product")


def aggregate(step_scores: Sequence[float], how: str) -> float:
    """One score of a response from those of its steps.

    Raises:
        ValueError: no such aggregation, or no step.
    """
    if not len(step_scores):
        raise ValueError("a response without steps has no score")
    functions = {"min": np.min, "sum": np.sum, "last": lambda s: s[-1], "mean": np.mean, "product": np.prod}
    if how not in functions:
        raise ValueError(f"aggregation must be one of {', '.join(AGGREGATIONS)}, got {how!r}")
    return float(functions[how](np.asarray(step_scores, dtype=float)))


def _checked(n: int, draws: int) -> None:
    if not 1 <= draws <= n:
        raise ValueError(f"cannot draw {draws} of {n} candidates")


def pass_at(correct: Sequence[bool], draws: int) -> float:
    """Probability that at least one of ``draws`` candidates is correct: 1 - C(n - c, N) / C(n, N)."""
    n, n_correct = len(correct), sum(map(bool, correct))
    _checked(n, draws)
    return 1.0 - comb(n - n_correct, draws) / comb(n, draws)


def best_of(scores: Sequence[float], correct: Sequence[bool], draws: int) -> float:
    """Probability that the candidate with the highest score among ``draws`` is correct; ties are broken at random.

    The highest of the subset is among the k lowest of the pool with probability C(k, N) / C(n, N); the difference
    between one score and the next lower one is shared equally by the candidates with that score.
    """
    n = len(scores)
    _checked(n, draws)
    array, hit = np.asarray(scores, dtype=float), np.asarray(correct, dtype=float)
    total, expected, below = comb(n, draws), 0.0, 0
    for score in np.unique(array):
        tied = array == score
        upto = below + int(tied.sum())
        expected += (comb(upto, draws) - comb(below, draws)) / total * hit[tied].mean()
        below = upto
    return expected


@dataclass(frozen=True)
class Subsets:
    """Subsets of a pool.

    Attributes:
        member_RN: candidate numbers of each subset.
        exact: whether these are all of them.
    """

    member_RN: np.ndarray
    exact: bool


def draw_subsets(n: int, draws: int, limit: int, rng: np.random.Generator) -> Subsets:
    """All subsets if there are at most ``limit``, else ``limit`` random ones."""
    _checked(n, draws)
    if comb(n, draws) <= limit:
        return Subsets(np.array(list(combinations(range(n), draws))), True)
    return Subsets(rng.random((limit, n)).argsort(1)[:, :draws], False)


def vote(
    answers: Sequence[Hashable | None], weights: Sequence[float], correct: Sequence[bool], subsets: Subsets
) -> tuple[float, float]:
    """Probability that the answer with the largest sum of weights is correct, and its Monte-Carlo standard error.

    Weights of 1 are majority voting; scores are weighted self-consistency. An answer of None votes for nothing; if
    nobody votes, the subset is wrong. Ties are broken at random, which is averaged here.

    Args:
        answers: of each candidate; equal ones count together.
        weights: of each candidate.
        correct: of each candidate; those with the same answer agree.
        subsets: over which the average is taken. The standard error is 0 when they are all there are.
    """
    names = {answer: number for number, answer in enumerate(dict.fromkeys(a for a in answers if a is not None))}
    if not names:
        return 0.0, 0.0
    votes_NA = np.zeros((len(answers), len(names)))
    present_NA = np.zeros_like(votes_NA)
    right_A = np.zeros(len(names))
    for row, answer in enumerate(answers):
        if answer is not None:
            votes_NA[row, names[answer]] = weights[row]
            present_NA[row, names[answer]] = 1.0
            right_A[names[answer]] = float(correct[row])
    sum_RA = votes_NA[subsets.member_RN].sum(1)
    there_RA = present_NA[subsets.member_RN].sum(1) > 0
    sum_RA = np.where(there_RA, sum_RA, -np.inf)
    highest_R1 = sum_RA.max(1, keepdims=True)
    # Sums of the same weights in another order differ in the last digits.
    tied_RA = there_RA & (sum_RA >= highest_R1 - 1e-9 * np.abs(np.where(np.isfinite(highest_R1), highest_R1, 0.0)))
    value_R = (tied_RA * right_A).sum(1) / np.maximum(1, tied_RA.sum(1))
    error = 0.0 if subsets.exact else float(value_R.std(ddof=1) / np.sqrt(len(value_R)))
    return float(value_R.mean()), error
