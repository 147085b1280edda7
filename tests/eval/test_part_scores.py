# SPDX-License-Identifier: Apache-2.0
"""Scores on parts of the tests, and grading of rows in EvalPlus' and LiveCodeBench's own form."""

import asyncio
import json

import pytest
from benchmark_rows import SAMPLES

from eval.grade import graded, summarize
from eval.grade_rows import Grader
from eval.part_scores import part_scores


def row(problem, score, **parts):
    return {"problem": problem, "score": score, **({"parts": parts} if parts else {})}


def test_parts_are_averaged_over_problems():
    rows = [
        row("a", 1.0, base=1.0, plus=1.0),
        row("a", 0.0, base=1.0, plus=0.0),
        row("b", 0.0, base=0.0, plus=0.0),
        # No program: 0 on each part.
        row("b", 0.0),
        row("c", 0.0, base=1.0, plus=0.0),
        # The grader could not decide.
        row("c", None),
    ]
    found = part_scores(rows)
    assert list(found) == ["base", "plus"]
    assert found["base"]["value"] == pytest.approx((1 + 0 + 1) / 3)
    assert found["plus"]["value"] == pytest.approx((0.5 + 0 + 0) / 3)


def test_tasks_without_parts_have_none():
    assert part_scores([row("a", 1.0), row("b", None)]) == {}


def read(path):
    return [json.loads(line) for line in (SAMPLES / path).read_text().splitlines()]


def test_stored_programs_are_graded_in_the_form_of_each_benchmark():
    plus, live = read("humaneval_plus/HumanEvalPlus.jsonl")[0], read("livecodebench/test.jsonl")[0]
    rows = [
        {**plus, "completion": "    return max(values) - min(values)"},
        {**live, "program": "print(sum(map(int, input().split())))"},
    ]
    grader = Grader("code")

    async def verdicts():
        for number, one in enumerate(rows, start=1):
            grader.check(one, f"row {number}")
        return [graded(one, await grader.grade(one)) for one in rows]

    found = asyncio.run(verdicts())
    assert [(one["score"], one.get("parts")) for one in found] == [(0.0, {"base": 1.0, "plus": 0.0}), (1.0, None)]
    assert summarize(found[:1])["parts"] == {"base": 1.0, "plus": 0.0}
    assert "parts" not in summarize(found[1:])
