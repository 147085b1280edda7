# SPDX-License-Identifier: Apache-2.0
"""Answers to one problem, sorted into classes of equal ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Same = Callable[[str, str], bool]


@dataclass(frozen=True)
class Ballot:
    """Votes on a problem: size, score, first answer of each class; ``silent`` have no answer."""

    votes: tuple[int, ...]
    scores: tuple[float, ...]
    silent: int
    answers: tuple[str, ...] = field(default=(), compare=False)

    @property
    def responses(self) -> int:
        return sum(self.votes) + self.silent


def count_votes(
    answers: Sequence[str | None], scores: Sequence[float | None], same: Same
) -> Ballot:
    """Sort the answers of one problem into classes, in the order in which they appear.

    A response without an answer has None; one that the grader could not judge has the score None
    and does not count. ``same`` compares an answer with the first of each class.
    """
    classes: dict[str, list[float]] = {}  # scores by the first answer
    first_of: dict[str, str] = {}
    silent = 0
    for answer, score in zip(answers, scores, strict=True):
        if score is None:
            continue
        if answer is None:
            silent += 1
            continue
        if answer not in first_of:
            first_of[answer] = next((first for first in classes if same(first, answer)), answer)
        classes.setdefault(first_of[answer], []).append(score)
    votes = tuple(len(members) for members in classes.values())
    means = tuple(sum(members) / len(members) for members in classes.values())
    return Ballot(votes, means, silent, tuple(classes))
