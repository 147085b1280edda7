# SPDX-License-Identifier: Apache-2.0
"""Rows of sources become problems, and a programming problem its tests and programs."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_preprocessing.code_sources import CODE_SOURCES, MOST_PROGRAMS, CodeProblem, one_row_per_problem
from data_preprocessing.math_sources import gsm8k_row, solved_row
from data_preprocessing.pipeline import SOURCES
from data_preprocessing.problems import numbered_rows
from prime_ext.tasks.cells import RowError
from prime_ext.utils.rows import BadRow, read_source
from prime_ext.verifiers.code.problems import parse_test_cases

FIXTURES = Path(__file__).parent / "fixtures"


def problems_of(name):
    source = CODE_SOURCES[name]
    rows = read_source(FIXTURES / source.local["train"])
    rows = source.joined(rows) if source.joined else rows
    return [source.problem(row, "train", n) for n, (_, row) in enumerate(rows) if not isinstance(row, BadRow)]


BOXES = r"First \boxed{1}. So it is \boxed{\frac{1}{2}}."


@pytest.mark.parametrize(
    ("parse", "row", "solution", "answer"),
    [
        (
            gsm8k_row,
            {"question": "P", "answer": "It is <<2/2=1>>1.\n#### 1,234"},
            "It is <<2/2=1>>1.\n#### 1,234",
            "1234",
        ),
        (gsm8k_row, {"question": "P", "answer": "Prices.\n#### 2.50 "}, "Prices.\n#### 2.50", "2.50"),
        (gsm8k_row, {"question": "P", "answer": "It is 3."}, "It is 3.", ""),
        (gsm8k_row, {"question": "P", "answer": "On the way: #### 5\nand on"}, "On the way: #### 5\nand on", ""),
        (solved_row, {"problem": "P", "solution": BOXES, "answer": "0.5"}, BOXES, "0.5"),
        (solved_row, {"problem": "P", "solution": BOXES, "answer": None}, BOXES, r"\frac{1}{2}"),
        (solved_row, {"problem": "P", "solution": "No box."}, "No box.", ""),
        (solved_row, {"question": "P", "answer": 142.0}, "", "142.0"),
    ],
)
def test_the_answer_is_behind_the_marker_or_in_its_column_or_in_the_last_box(parse, row, solution, answer):
    assert parse(row) == {"problem": "P", "solution": solution, "answer": answer}


def test_only_an_equal_id_was_there_before():
    """Python's own hash takes -1 and -2 for the same, and 1 and 2**61."""
    ids = [-1, -2, 1, 2**61, "1", "-1", -2]
    given = [(number, {"id": value}) for number, value in enumerate(ids, start=1)]
    source = SimpleNamespace(name="set", id_column="id")
    split = SimpleNamespace(source=source, split="train", name="rows", path=None, rows=lambda: given)
    *first, again = [row for *_, row in numbered_rows([split])]
    assert [row["id"] for row in first] == ids[:-1] and isinstance(again, BadRow)


# ---- programs ----


def test_tests_keep_their_text_and_say_what_they_call():
    first, second, *_ = problems = problems_of("apps")
    assert json.loads(first.ground_truth()) == {"inputs": ["2 3\n", "-4 10\n"], "outputs": ["5\n", "6\n"]}
    assert first.programs[0] == "print(7)\n" and len(first.programs) == 2
    assert json.loads(second.ground_truth()) == {"inputs": [[3], [-5]], "outputs": [[6], [-10]], "fn_name": "double"}
    assert parse_test_cases(second.ground_truth()).function == "double"
    assert second.statement().endswith("Begin with this code:\n```python\ndef double(x):\n    pass\n```")
    named = CodeProblem("apps", "train", 0, "Do it.", function="f")
    assert named.statement() == "Do it.\n\nName the function `f`."
    assert "no JSON" in problems[3].unreadable and problems[4].unreadable == "there is no test"
    assert problems[3].inputs == () and problems[3].programs


def test_each_set_has_its_tests_programs_and_marks():
    taco = problems_of("taco")
    assert [problem.marks for problem in taco] == [("picture",), (), ()]
    assert taco[2].inputs == ("ab ba",) and taco[2].outputs == ("ba\nab",)
    first, second, _ = problems_of("codecontests")
    # Public, private and generated tests; programs in Python 3 only.
    assert first.inputs[:4] == ("8\n", "10\n", "8\n", "2\n") and second.marks == ("file",)
    assert first.programs == ("print(int(input()) // 2)\n",)


def test_submissions_become_problems_with_their_accepted_python_3_programs():
    first, second = problems_of("codeforces")
    assert first.programs == ("print(int(input()) // 2)\n",) and second.index == 2
    assert first.problem.split("\n\n") == [
        "Read a number of apples and print how many pairs they make.",
        "Input\nOne number.",
        "Output\nThe number of pairs.",
        "Example input\n5\nExample output\n2",
        "Note\nOne apple is left.",
    ]
    row = {"contestId": 1, "index": "A", "verdict": "OK", "programmingLanguage": "Python 3"}
    rows = [(n, {**row, "code": f"print({n})"}) for n in range(1, 40)]
    found = dict(one_row_per_problem(iter([*rows, (40, {"index": "A"})])))
    assert isinstance(found[40], BadRow) and len(found[1]["accepted_programs"]) == MOST_PROGRAMS


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("math", {"solution": "x"}, "no column problem or question"),
        ("math", {"problem": "P"}, "neither column solution nor answer"),
        ("math", {"problem": "P", "answer": {"x": 1}}, "answer must be a text"),
        ("apps", {"question": "x"}, "no column input_output"),
        ("codecontests", {"description": "x", "public_tests": [1]}, "public_tests must have input and output"),
        ("codeforces", {"problem-description": "x", "test_cases": ["a"]}, "test_cases must be a list of pairs"),
    ],
)
def test_rows_of_another_shape_are_bad_rows(name, row, reason):
    with pytest.raises((BadRow, RowError), match=reason):
        SOURCES[name].problem(row, "train", 0)


@pytest.mark.parametrize(
    "tests",
    [
        '{"inputs": ["\\ud800"], "outputs": ["1"]}',
        '{"inputs": [1], "outputs": ["1"]}',
        "[]",
        '{"test_list": ["assert 1"]}',
        '{"inputs": ["{"], "outputs": ["1"], "fn_name": "f"}',
        "7" * 5000,
    ],
)
def test_strange_tests_are_unreadable_and_never_an_error(tests):
    row = {"question": "x", "input_output": tests, "solutions": '[7, "a"]'}
    problem = CODE_SOURCES["apps"].problem(row, "train", 0)
    assert problem.unreadable and problem.programs == ("a",)
