# SPDX-License-Identifier: Apache-2.0
"""A verdict cannot contradict itself."""

import pytest

from prime_ext.verifiers.verdict import Outcome, Verdict


@pytest.mark.parametrize(
    ("outcome", "score", "grader_failure"),
    [
        (Outcome.CORRECT, 0.5, False),
        (Outcome.WRONG, 1.0, False),
        (Outcome.WRONG, None, False),
        (Outcome.WRONG, None, True),
        (Outcome.TIMEOUT, 0.0, True),
        (Outcome.WRONG, -0.1, False),
        (Outcome.WRONG, float("nan"), False),
    ],
)
def test_contradictions_are_refused(outcome, score, grader_failure):
    with pytest.raises(ValueError):
        Verdict(outcome, score, grader_failure=grader_failure)
