# SPDX-License-Identifier: Apache-2.0
"""Answers to one problem, sorted into classes of equal ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Same = Callable[[str, str], bool]


@dataclass(frozen=True)
class Ballot:
    """The votes of one problem: responses, score and first answer of each class; ``silent`` ones have no answer."""

    votes: tuple[int, ...]
    scores: tuple[float, ...]
    silent: int
    answers: tuple[str, ...] = field(default=(), compare=False)

    @property
    def responses(self) -> int:
        return sum(self.votes) + self.silent


def count_votes(answers: Sequence[str | None], scores: Sequence[float | None], same: Same) -> Ballot:
    """Sort the answers of one problem into classes, in the order in which they appear.

    A response without an answer has None; one that the grader could not judge has the score None and does not count.
    ``same`` compares an answer with the first of each class.
    """
    classes: list[tuple[str, list[float]]] = []
    known: dict[str, list[float]] = {}
    silent = 0
    for answer, score in zip(answers, scores, strict=True):
        if score is None:
            continue
        if answer is None:
            silent += 1
            continue
        members = known.get(answer)
        if members is None:
            members = next((own for first, own in classes if same(first, answer)), None)
            if members is None:
                members = []
                classes.append((answer, members))
            known[answer] = members
        members.append(score)
    votes = tuple(len(members) for _, members in classes)
    scored = tuple(sum(members) / len(members) for _, members in classes)
    return Ballot(votes, scored, silent, tuple(first for first, _ in classes))
