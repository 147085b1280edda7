# SPDX-License-Identifier: Apache-2.0
"""What a run on one task amounts to: scores with intervals, rates, and the same for every subject and level."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from eval.majority import majority_at_k
from eval.statistics import Estimate, NoProblems, average, check_k, pass_at_k
from prime_ext.tasks.votes import Same, count_votes


@dataclass(frozen=True)
class Sample:
    """A response that was judged.

    Attributes:
        score: in [0, 1]; None where the grader could not decide.
        answer: that was found in it; None if there is none.
        tokens: its length.
        truncated: it was cut off at the longest length.
        failed: there is no response: the model could not be asked. It is in no mean and in none of the shares.
    """

    score: float | None
    answer: str | None
    tokens: int
    truncated: bool
    failed: bool = False


@dataclass(frozen=True)
class Graded:
    """A problem with its responses.

    Attributes:
        problem: its id.
        samples: its responses.
        groups: by what results are broken down, e.g. ``{"subject": "Algebra", "level": "5"}``.
    """

    problem: str
    samples: Sequence[Sample]
    groups: Mapping[str, str] = field(default_factory=dict)

    @property
    def scores(self) -> list[float | None]:
        return [sample.score for sample in self.samples]


def summarize(graded: Sequence[Graded], ks: Sequence[int] = (), same: Same | None = None) -> dict[str, Any]:
    """All numbers of a run on one task, ready for JSON.

    Args:
        graded: the problems; all have the same number of responses.
        ks: the k of pass@k and maj@k.
        same: equality of answers; None leaves maj@k out, for tasks whose answers are programs.

    Returns:
        ``problems``, ``samples_per_problem``, ``grader_failures`` (responses in no mean), ``scores`` (``avg@n``,
        ``pass@k``, ``maj@k``; see :class:`eval.statistics.Estimate`, None where no problem has enough judged
        responses), ``no_answer`` and ``truncated`` (shares of the responses), ``tokens`` (mean, median, most), and
        ``groups``: ``avg@n`` by subject, level and whatever else the problems have.

    Raises:
        ValueError: no problems, different numbers of responses, or a k above them.
    """
    sizes = {len(problem.samples) for problem in graded}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"every problem needs the same number of responses, got {sorted(sizes) or 'no problem'}")
    scores = [problem.scores for problem in graded]
    for k in ks:
        check_k(scores, k)
    (n,) = sizes
    samples = [sample for problem in graded for sample in problem.samples if not sample.failed]
    tokens = [sample.tokens for sample in samples] or [0]
    responses = max(1, len(samples))
    return {
        "problems": len(graded),
        "samples_per_problem": n,
        "grader_failures": sum(sample.score is None for sample in samples),
        "scores": _scores(graded, n, ks, same),
        "no_answer": sum(sample.answer is None for sample in samples) / responses,
        "truncated": sum(sample.truncated for sample in samples) / responses,
        "tokens": {"mean": statistics.fmean(tokens), "median": statistics.median(tokens), "most": max(tokens)},
        "groups": {
            name: {value: _estimate(average, [problem.scores for problem in members]) for value, members in parts}
            for name, parts in _by_group(graded).items()
        },
    }


def _scores(graded: Sequence[Graded], n: int, ks: Sequence[int], same: Same | None) -> dict[str, Any]:
    scores = [problem.scores for problem in graded]
    found = {f"avg@{n}": _estimate(average, scores)}
    for k in ks:
        found[f"pass@{k}"] = _estimate(pass_at_k, scores, k)
    if same is not None:
        ballots = [count_votes([s.answer for s in problem.samples], problem.scores, same) for problem in graded]
        for k in ks:
            found[f"maj@{k}"] = _estimate(majority_at_k, ballots, [n] * len(graded), k)
    return found


def _estimate(estimate: Callable[..., Estimate], *arguments: Any) -> dict[str, Any] | None:
    """An estimate for JSON, or None where the grader judged too little for one."""
    try:
        return asdict(estimate(*arguments))
    except NoProblems:
        return None


def _by_group(graded: Sequence[Graded]) -> dict[str, list[tuple[str, list[Graded]]]]:
    """The problems of each value of each group, the values in order."""
    parts: dict[str, dict[str, list[Graded]]] = {}
    for problem in graded:
        for name, value in problem.groups.items():
            parts.setdefault(name, {}).setdefault(value, []).append(problem)
    return {name: sorted(values.items()) for name, values in parts.items()}
