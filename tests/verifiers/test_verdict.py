# SPDX-License-Identifier: Apache-2.0
"""A verdict cannot contradict itself."""

import pytest

from prime_ext.verifiers.verdict import Outcome, Verdict


def test_contradictions_are_refused():
    scores = [
        (Outcome.CORRECT, 0.5),
        (Outcome.WRONG, 1.0),
        (Outcome.WRONG, None),
        (Outcome.WRONG, -0.1),
    ]
    cases = [(*pair, False) for pair in [*scores, (Outcome.WRONG, float("nan"))]]
    for outcome, score, grader_failure in [
        *cases,
        (Outcome.WRONG, None, True),
        (Outcome.TIMEOUT, 0.0, True),
    ]:
        with pytest.raises(ValueError):
            Verdict(outcome, score, grader_failure=grader_failure)
