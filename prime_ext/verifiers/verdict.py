# SPDX-License-Identifier: Apache-2.0
"""The verdict on a response: an outcome, a score, and whether the grader failed."""

import enum
from dataclasses import dataclass


class Outcome(str, enum.Enum):
    """Result of a verification.

    ``timeout``, ``error`` and ``out_of_memory`` happen to programs, which have failed their tests
    then, and to the grader, which leaves the response undecided: see
    :attr:`Verdict.grader_failure`.
    """

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    TIMEOUT = "timeout"
    ERROR = "error"
    OUT_OF_MEMORY = "out_of_memory"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Verdict:
    """Verdict on one response. Raises ``ValueError``: score, outcome, grader_failure disagree."""

    outcome: Outcome
    # in [0, 1]: 1.0 exactly if the outcome is correct, None exactly if the grader failed
    score: float | None
    extracted: str | None = None  # the answer or program in the response, None if there is none
    seconds: float = 0.0  # wall time of the verification
    detail: str = ""  # one line for people and logs: the rule or test that decided, or the failure
    grader_failure: bool = False  # the grader could not decide: timeout, error or out_of_memory

    def __post_init__(self) -> None:
        if self.grader_failure != (self.score is None):
            raise ValueError(f"score must be None exactly if the grader failed, got {self}")
        if self.grader_failure and self.outcome in (
            Outcome.CORRECT,
            Outcome.WRONG,
            Outcome.NO_ANSWER,
        ):
            raise ValueError(f"a failed grader decides nothing, got outcome {self.outcome}")
        if self.score is not None and not 0.0 <= self.score <= 1.0:
            raise ValueError(f"score must be in [0, 1], got {self.score}")
        if (self.outcome is Outcome.CORRECT) != (self.score == 1.0):
            raise ValueError(f"score 1.0 and the outcome 'correct' go together, got {self}")

    @property
    def correct(self) -> bool:
        return self.outcome is Outcome.CORRECT


def correct(extracted: str | None, seconds: float, detail: str = "") -> Verdict:
    return Verdict(Outcome.CORRECT, 1.0, extracted, seconds, detail)


def wrong(extracted: str | None, seconds: float, detail: str = "") -> Verdict:
    return Verdict(Outcome.WRONG, 0.0, extracted, seconds, detail)


def no_answer(seconds: float, detail: str = "") -> Verdict:
    return Verdict(Outcome.NO_ANSWER, 0.0, None, seconds, detail)


def grader_failed(outcome: Outcome, extracted: str | None, seconds: float, detail: str) -> Verdict:
    """Return the verdict of a grader that failed: ``timeout``, ``error`` or ``out_of_memory``."""
    return Verdict(outcome, None, extracted, seconds, detail, grader_failure=True)
