# SPDX-License-Identifier: Apache-2.0
"""Which of the validated problems are trained on. A pure function.

PRIME describes its final selection in prose only (arXiv 2502.01456, section and appendix on data): of the problems that
were solved five times by the judging models, those stay that are consistently found solvable, whose solutions agree,
and whose agreed answer is the reference. How consistent is not said; the thresholds are settings, and their defaults a
clear majority, three of five.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from data_preprocessing.votes import Votes
from prime_ext.utils.rows import SourceError

SOLVABLE_BY = ("model", "agreement")
MODELS = ("all", "any")
RULES = {
    "no_votes": "no model has voted",
    "unsolvable": "too few solutions end in an answer",
    "disagreement": "too few solutions give the same answer",
    "mismatch": "the answer that most solutions give is not the reference, or too few solutions give the reference",
}


@dataclass(frozen=True)
class SelectionRule:
    """What a problem needs to stay.

    Attributes:
        solvable_by: ``model``: the judges say so, at least ``min_solvable`` of their solutions end in an answer;
            ``agreement``: solutions that agree are proof enough, what the others say does not matter.
        min_solvable: share of the solutions that must end in an answer.
        min_agreement: share of the solutions that must give the same answer.
        min_match: share of the solutions that must give the reference, besides the most frequent answer being it.
        models: whether ``all`` models that voted must find so, or ``any`` of them.

    Raises:
        SourceError: a share outside [0, 1], or an unknown word.
    """

    solvable_by: str = "model"
    min_solvable: float = 0.6
    min_agreement: float = 0.6
    min_match: float = 0.0
    models: str = "all"

    def __post_init__(self) -> None:
        for name in ("min_solvable", "min_agreement", "min_match"):
            share = getattr(self, name)
            if not 0 <= share <= 1:
                raise SourceError(f"--{name.replace('_', '-')} must be from 0 to 1, got {share}")
        for name, known in (("solvable_by", SOLVABLE_BY), ("models", MODELS)):
            if getattr(self, name) not in known:
                raise SourceError(f"{name} must be {' or '.join(known)}, got {getattr(self, name)!r}")


def reason_against(votes: Sequence[Votes], rule: SelectionRule) -> tuple[str, str] | None:
    """Why a problem goes, one of :data:`RULES` and what it saw; None if it stays.

    With ``models="any"`` the reason is that of the model under which the problem comes furthest.
    """
    if not votes:
        return "no_votes", ""
    reasons = [_of_model(one, rule) for one in votes]
    order = list(RULES)
    found = [reason for reason in reasons if reason is not None]
    if not found or (rule.models == "any" and len(found) < len(reasons)):
        return None
    choose = max if rule.models == "any" else min
    return choose(found, key=lambda reason: order.index(reason[0]))


def _of_model(votes: Votes, rule: SelectionRule) -> tuple[str, str] | None:
    of = f"of {votes.solutions} by {votes.model}"
    if rule.solvable_by == "model" and _short(votes.solvable, rule.min_solvable, votes.solutions):
        return "unsolvable", f"{votes.solvable} {of} end in an answer"
    if votes.answer is None or _short(votes.agreeing, rule.min_agreement, votes.solutions):
        return "disagreement", f"{votes.agreeing} {of} give {votes.answer}"
    if not votes.answer_matches or _short(votes.matching, rule.min_match, votes.solutions):
        return "mismatch", f"{votes.agreeing} {of} give {votes.answer}, {votes.matching} the reference"
    return None


def _short(count: int, share: float, total: int) -> bool:
    """Whether a count falls short of a share; 0.6 of 5 are 3, whatever binary fractions say."""
    return count < share * total - 1e-9
