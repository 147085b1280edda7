# SPDX-License-Identifier: Apache-2.0
"""Answers as public bug reports of graders have them, by kind (reported.jsonl)."""

import asyncio
import json
from pathlib import Path

import pytest

from prime_ext.verifiers.code import CodeVerifier
from prime_ext.verifiers.math import MathVerifier, extract
from prime_ext.verifiers.multiple_choice import MultipleChoiceVerifier

CASES = [
    json.loads(line) for line in Path(__file__).with_name("reported.jsonl").read_text().splitlines()
]
# A bare letter is a variable here, not a unit.
NAMES = ("entailment", "neutral", "contradiction")
OTHERWISE = [("5", r"5\,u")]


@pytest.fixture(scope="module")
def verifiers():
    return MathVerifier(), CodeVerifier(), MultipleChoiceVerifier(n_options=None)


def judge(verifiers, gold, pred, expected, kind, extraction=None, prompt=None):
    """Return the verdict, or the answer that is extracted where that is what is expected."""
    math, code, choice = verifiers
    if isinstance(gold, dict) or gold.startswith('{"inputs"'):
        fenced = "```" in pred or "~~~" in pred
        return asyncio.run((code.averify if fenced else code.averify_program)(pred, gold)).correct
    if kind.startswith("choice"):
        named = MultipleChoiceVerifier(names=NAMES) if gold in NAMES else choice
        return named.verify(pred, gold).correct
    if isinstance(expected, str):
        return extract(pred, extraction or "boxed").answer
    style = extraction or ("boxed" if r"\boxed" in pred else None)
    verdict = math.verify(
        pred, gold, extraction=style, **({} if prompt is None else {"prompt": prompt})
    )
    # A response must not be able to leave its group.
    assert not verdict.grader_failure, (gold, pred, verdict.detail)
    return verdict.correct


@pytest.mark.parametrize("kind", sorted({case["kind"] for case in CASES}))
def test_reported_answers(verifiers, kind):
    cases = [case for case in CASES if case["kind"] == kind]
    odd = [case for case in cases if judge(verifiers, **case) != case["expected"]]
    assert [case for case in odd if (case["gold"], case["pred"]) not in OTHERWISE] == []
