# SPDX-License-Identifier: Apache-2.0
"""Pairs by kinds of faults of graders: what is not understood must not be paid."""

import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = {
    name: [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text().splitlines()]
    for name in ("kinds", "blind1", "blind2")
}
# Shares of right verdicts and of wrong answers that are paid, at which a change must not arrive.
LEAST_RIGHT = {"kinds": 1.0, "blind1": 0.995, "blind2": 0.945}
MOST_PAID = {"kinds": 0.0, "blind1": 0.003, "blind2": 0.004}


@pytest.mark.parametrize("name", CASES)
def test_verdicts_by_kind(verifier, name):
    odd = []
    paid = 0
    for case in CASES[name]:
        prompt = {"prompt": case["prompt"]} if case.get("prompt") else {}
        verdict = verifier.verify(
            case["pred"], case["gold"], extraction=case.get("extraction"), **prompt
        )
        assert not verdict.grader_failure, (case, verdict.detail)
        if verdict.correct != case["expected"]:
            odd.append((case["kind"], case["gold"], case["pred"], verdict.detail))
            paid += verdict.correct
    wrong = sum(not case["expected"] for case in CASES[name])
    assert 1 - len(odd) / len(CASES[name]) >= LEAST_RIGHT[name], odd
    assert paid / wrong <= MOST_PAID[name], odd


def test_responses_of_policies(verifier):
    path = HERE / "policy_responses.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    verdicts = verifier.verify_batch([(row["response"], row["gold"]) for row in rows])
    labels = [row["label"] for row in rows]
    assert [verdict.correct for verdict in verdicts] == labels
