# SPDX-License-Identifier: Apache-2.0
"""Rows of APPS, TACO, CodeContests and Codeforces become programming problems with tests and programs."""

import json
from pathlib import Path

import pytest

from data_preprocessing.code_problem import MOST_PROGRAMS, CodeProblem
from data_preprocessing.code_sources import CODE_SOURCES
from data_preprocessing.submissions import one_row_per_problem
from prime_ext.tasks.cells import RowError
from prime_ext.utils.rows import BadRow, read_source
from prime_ext.verifiers.code.problems import parse_test_cases

FIXTURES = Path(__file__).parent / "fixtures"


def problems_of(name):
    source = CODE_SOURCES[name]
    rows = read_source(FIXTURES / source.local["train"])
    rows = source.joined(rows) if source.joined else rows
    return [source.problem(row, "train", n) for n, (_, row) in enumerate(rows) if not isinstance(row, BadRow)]


def test_standard_input_tests_keep_their_text_and_programs_their_order():
    problem = problems_of("apps")[0]
    assert (problem.inputs, problem.outputs) == (("2 3\n", "-4 10\n"), ("5\n", "6\n"))
    assert problem.programs[0] == "print(7)\n" and len(problem.programs) == 2
    assert json.loads(problem.ground_truth()) == {"inputs": ["2 3\n", "-4 10\n"], "outputs": ["5\n", "6\n"]}


def test_tests_that_call_a_function_say_its_name_and_the_policy_sees_how_to_begin():
    problem = problems_of("apps")[1]
    tests = json.loads(problem.ground_truth())
    assert tests == {"inputs": [[3], [-5]], "outputs": [[6], [-10]], "fn_name": "double"}
    assert parse_test_cases(problem.ground_truth()).function == "double"
    assert problem.statement().endswith("Begin with this code:\n```python\ndef double(x):\n    pass\n```")
    named = CodeProblem("apps", "train", 0, "Do it.", function="f")
    assert named.statement() == "Do it.\n\nName the function `f`."


def test_tests_that_cannot_be_read_are_said_and_not_lost():
    problems = problems_of("apps")
    assert "no JSON" in problems[3].unreadable and problems[4].unreadable == "there is no test"
    assert problems[3].inputs == () and problems[3].programs


def test_pictures_of_taco_and_lists_of_lines():
    problems = problems_of("taco")
    assert [problem.marks for problem in problems] == [("picture",), (), ()]
    assert problems[2].inputs == ("ab ba",) and problems[2].outputs == ("ba\nab",)


def test_code_contests_has_public_private_and_generated_tests_and_programs_in_python_3_only():
    first, second, _ = problems_of("codecontests")
    assert first.inputs[:4] == ("8\n", "10\n", "8\n", "2\n")
    assert first.programs == ("print(int(input()) // 2)\n",)
    assert second.marks == ("file",)


def test_submissions_become_problems_with_their_accepted_python_3_programs():
    first, second = problems_of("codeforces")
    assert first.programs == ("print(int(input()) // 2)\n",)
    assert first.problem.split("\n\n") == [
        "Read a number of apples and print how many pairs they make.",
        "Input\nOne number.",
        "Output\nThe number of pairs.",
        "Example input\n5\nExample output\n2",
        "Note\nOne apple is left.",
    ]
    assert second.index == 2


def test_a_submission_that_names_no_problem_is_a_bad_row_and_few_programs_are_kept():
    row = {"contestId": 1, "index": "A", "verdict": "OK", "programmingLanguage": "Python 3"}
    rows = [(n, {**row, "code": f"print({n})"}) for n in range(1, 40)]
    found = dict(one_row_per_problem(iter([*rows, (40, {"index": "A"})])))
    assert isinstance(found[40], BadRow)
    assert len(found[1]["accepted_programs"]) == MOST_PROGRAMS and found[1]["submissions"] == 39


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("apps", {"question": "x"}, "no column input_output"),
        ("apps", {"question": " ", "input_output": "{}"}, "question is empty"),
        ("taco", {"input_output": "{}"}, "no column question"),
        ("codecontests", {"description": "x", "public_tests": [1]}, "public_tests must have input and output"),
        ("codeforces", {"problem-description": "x", "test_cases": ["a"]}, "test_cases must be a list of pairs"),
    ],
)
def test_rows_of_another_shape_are_bad_rows(name, row, reason):
    with pytest.raises((BadRow, RowError), match=reason):
        CODE_SOURCES[name].problem(row, "train", 0)


@pytest.mark.parametrize(
    "tests",
    [
        '{"inputs": ["\\ud800"], "outputs": ["1"]}',
        '{"inputs": [1], "outputs": ["1"]}',
        "[]",
        '{"test_list": ["assert 1"]}',
    ]
    + ['{"inputs": ["1"], "outputs": []}', '{"inputs": ["{"], "outputs": ["1"], "fn_name": "f"}', "7" * 5000],
)
def test_strange_tests_are_unreadable_and_never_an_error(tests):
    problem = CODE_SOURCES["apps"].problem(
        {"question": "x", "input_output": tests, "solutions": '[7, "a"]'}, "train", 0
    )
    assert problem.unreadable and problem.programs == ("a",)
