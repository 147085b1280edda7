# SPDX-License-Identifier: Apache-2.0
"""What a verifier says about one response: an outcome, a score, and whose fault it is if there is none."""

import enum
from dataclasses import dataclass


class Outcome(str, enum.Enum):
    """What happened when a response was verified.

    ``timeout``, ``error`` and ``out_of_memory`` say what happened, not who is to blame: a program that never ends has
    failed its tests, whereas an expression on which the grader never ends leaves the response undecided.
    :attr:`Verdict.grader_failure` tells the two apart.
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
    """The verdict on one response.

    Attributes:
        outcome: what happened.
        score: reward in [0, 1], or None exactly if the grader failed, because then the response is neither right nor
            wrong. 1.0 exactly if the outcome is ``correct``.
        extracted: the answer or program found in the response, None if there is none.
        seconds: wall time that the verdict took.
        detail: one line for people and logs: the rule or test that decided, or what failed.
        grader_failure: the grader could not decide. The outcome is then ``timeout``, ``error`` or ``out_of_memory``.

    Raises:
        ValueError: score, outcome and grader_failure contradict each other.
    """

    outcome: Outcome
    score: float | None
    extracted: str | None = None
    seconds: float = 0.0
    detail: str = ""
    grader_failure: bool = False

    def __post_init__(self) -> None:
        if self.grader_failure != (self.score is None):
            raise ValueError(f"score must be None exactly if the grader failed, got {self}")
        if self.grader_failure and self.outcome in (Outcome.CORRECT, Outcome.WRONG, Outcome.NO_ANSWER):
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
    """Return the verdict of a grader that could not decide (``timeout``, ``error`` or ``out_of_memory``)."""
    return Verdict(outcome, None, extracted, seconds, detail, grader_failure=True)
