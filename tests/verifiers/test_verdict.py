# SPDX-License-Identifier: Apache-2.0
import pytest

from prime_ext.verifiers.verdict import Outcome, Verdict, correct, grader_failed, no_answer, wrong


def test_the_shorthands_agree_with_the_rules():
    assert correct("3", 0.1).score == 1.0 and correct("3", 0.1).correct
    assert wrong("3", 0.1).score == 0.0 and not wrong("3", 0.1).correct
    assert no_answer(0.1).extracted is None
    assert grader_failed(Outcome.TIMEOUT, "9^9^9", 6.0, "stuck").score is None


@pytest.mark.parametrize(
    "fields",
    [
        {"outcome": Outcome.CORRECT, "score": 0.5},
        {"outcome": Outcome.WRONG, "score": 1.0},
        {"outcome": Outcome.WRONG, "score": None},
        {"outcome": Outcome.WRONG, "score": None, "grader_failure": True},
        {"outcome": Outcome.TIMEOUT, "score": 0.0, "grader_failure": True},
        {"outcome": Outcome.WRONG, "score": -0.1},
        {"outcome": Outcome.WRONG, "score": float("nan")},
    ],
)
def test_contradictions_are_refused(fields):
    with pytest.raises(ValueError):
        Verdict(**fields)


def test_a_program_that_never_ends_is_not_the_graders_failure():
    verdict = Verdict(Outcome.TIMEOUT, 0.0, detail="test 3")
    assert not verdict.grader_failure and str(verdict.outcome) == "timeout"
