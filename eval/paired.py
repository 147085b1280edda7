# SPDX-License-Identifier: Apache-2.0
"""Two runs on the same problems: the mean difference with its interval, what flipped, and the mean over tasks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from eval.statistics import CONFIDENCE, NoProblems


@dataclass(frozen=True)
class Flip:
    """A problem that most responses of one run solve and those of the other do not."""

    problem: str
    before: float
    after: float


@dataclass(frozen=True)
class Comparison:
    """The second run against the first, as fractions.

    Attributes:
        difference: mean over problems of the second score minus the first.
        standard_error: of the difference, paired by problem; None with a single problem.
        low: lower end of the 95 % interval of the difference; None with a single problem.
        high: upper end.
        problems: that were counted.
        left_out: problems that one of the runs could not judge at all.
        gained: problems that only the second run solves (mean score above 1/2).
        lost: problems that only the first run solves.
    """

    difference: float
    standard_error: float | None
    low: float | None
    high: float | None
    problems: int
    left_out: int
    gained: tuple[Flip, ...]
    lost: tuple[Flip, ...]


Scores = Mapping[str, Sequence[float | None]]


def compare_runs(before: Scores, after: Scores) -> Comparison:
    """Compare two runs problem by problem.

    Pairing takes the difficulty of the problems out of the noise (arXiv 2411.00640, section 4.2). The interval is
    Student's with two problems added whose differences are one response in either direction, 1/k and -1/k for k
    responses per problem. With one right-or-wrong response per problem that is the adjusted Wald interval for paired
    proportions (Bonett and Price, J. Educ. Behav. Stat. 37, 2012) with Student's quantile for the normal one, which,
    unlike the plain interval, is not empty when no problem differs; with many responses per problem the addition
    vanishes.

    Args:
        before: scores of the responses of each problem, by its id; None where the grader could not decide.
        after: the same for the other run. The numbers of responses may differ.

    Raises:
        ValueError: the runs do not have the same problems.
        NoProblems: no problem is judged in both.
    """
    missing = sorted(before.keys() ^ after.keys())
    if missing:
        run = "second" if missing[0] in before else "first"
        raise ValueError(f"the runs differ in {len(missing)} problems, e.g. {missing[0]!r} is not in the {run}")
    pairs, fewest = {}, math.inf
    for problem in before:
        judged = [[score for score in run[problem] if score is not None] for run in (before, after)]
        if all(judged):
            pairs[problem] = (sum(judged[0]) / len(judged[0]), sum(judged[1]) / len(judged[1]))
            fewest = min(fewest, *map(len, judged))
    if not pairs:
        raise NoProblems(f"no problem is judged in both runs ({len(before)} left out)")
    differences = np.array([second - first for first, second in pairs.values()])
    error, low, high = _interval(differences, 1 / fewest)
    flips = [Flip(problem, *scores) for problem, scores in pairs.items() if (scores[0] > 0.5) != (scores[1] > 0.5)]
    return Comparison(
        difference=float(differences.mean()),
        standard_error=error,
        low=low,
        high=high,
        problems=len(pairs),
        left_out=len(before) - len(pairs),
        gained=tuple(flip for flip in flips if flip.after > flip.before),
        lost=tuple(flip for flip in flips if flip.after < flip.before),
    )


def mean_difference(tasks: Sequence[Comparison]) -> dict[str, float | None] | None:
    """Mean of the differences over tasks that share no problem, with its interval; None with less than two.

    The errors of the tasks are independent, so the standard error of the mean is the root of the sum of their squares,
    over the number of tasks. The interval is Student's with Welch's and Satterthwaite's degrees of freedom (Biometrics
    Bulletin 2, 1946).
    """
    if len(tasks) < 2:
        return None
    value = sum(own.difference for own in tasks) / len(tasks)
    known = [(own.standard_error, own.problems - 1) for own in tasks if own.standard_error is not None]
    error = math.sqrt(sum(own**2 for own, _ in known)) / len(tasks)
    if len(known) < len(tasks) or error == 0:
        return {"value": value, "standard_error": None, "low": None, "high": None}
    freedom = sum(own**2 for own, _ in known) ** 2 / sum(own**4 / degrees for own, degrees in known)
    half = float(student.ppf((1 + CONFIDENCE) / 2, freedom)) * error
    return {"value": value, "standard_error": error, "low": max(-1.0, value - half), "high": min(1.0, value + half)}


def _interval(differences: np.ndarray, response: float) -> tuple[float | None, float | None, float | None]:
    """Standard error and interval; ``response`` is what one response is worth."""
    if differences.size == 1:
        return None, None, None
    error = float(differences.std(ddof=1)) / math.sqrt(differences.size)
    wider = np.append(differences, [response, -response])
    half = float(student.ppf((1 + CONFIDENCE) / 2, wider.size - 1) * wider.std() / math.sqrt(wider.size))
    centre = float(wider.mean())
    return error, max(-1.0, centre - half), min(1.0, centre + half)
