# SPDX-License-Identifier: Apache-2.0
"""A programming problem on its way from a source to RL, and how rows of the sources become it.

The columns are those on the Hugging Face hub of ``codeparrot/apps``, ``BAAI/TACO``, ``deepmind/code_contests``
and ``MatrixStudio/Codeforces-Python-Submissions``.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prime_ext.tasks.cells import is_whole, text_of_cell
from prime_ext.utils.rows import BadRow
from prime_ext.verifiers.code.extraction import MAX_PROGRAM_CHARACTERS
from prime_ext.verifiers.code.problems import MalformedTests, StdinProblem, parse_test_cases

# Programs of one problem that are kept to be tried; CodeContests has hundreds.
MOST_PROGRAMS = 8
# CodeContests' number for Python 3; 1 is Python 2.
_PYTHON_3 = 3
SUBMISSION_PROGRAMS = "accepted_programs"


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """A problem, its tests and programs that are said to solve it.

    Attributes:
        data_source: decides for the verifier.
        split: of the files it comes from.
        index: number of its row among those of its source and split, from 0, whatever happens to the others.
        problem: what is asked, with examples.
        inputs: of the tests: standard input, or the arguments of a call, in a form of
            :mod:`prime_ext.verifiers.code.problems`.
        outputs: what is expected of each.
        function: name of the function that the tests call; empty where they are standard input and output.
        starter: code that the program is to begin with; empty if there is none.
        programs: Python 3 programs that are said to be right. Nobody has looked at them: they may be hostile.
        unreadable: why the tests cannot be read; empty if they can.
        marks: what columns of the source say of it: ``picture``, ``interactive``, ``file``.
    """

    data_source: str
    split: str
    index: int
    problem: str
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()
    function: str = ""
    starter: str = ""
    programs: tuple[str, ...] = ()
    unreadable: str = ""
    marks: tuple[str, ...] = ()

    def gist(self) -> str:
        """How many tests there are, for samples."""
        return f"{len(self.inputs)} tests" + (f" of {self.function}" if self.function else "")

    def ground_truth(self) -> str:
        """The tests as Eurus-2-RL-Data writes them."""
        tests: dict[str, Any] = {"inputs": list(self.inputs), "outputs": list(self.outputs)}
        return json.dumps(tests | ({"fn_name": self.function} if self.function else {}))

    def statement(self) -> str:
        """What the policy is asked: the problem, and how its program has to begin if the tests call a function."""
        if self.starter:
            return f"{self.problem}\n\nBegin with this code:\n```python\n{self.starter}\n```"
        return f"{self.problem}\n\nName the function `{self.function}`." if self.function else self.problem


def _with_tests(problem: CodeProblem, tests: Any) -> CodeProblem:
    """The problem with its tests, or with the reason why they cannot be read."""
    try:
        parsed = parse_test_cases(tests)
    except MalformedTests as error:
        return replace(problem, unreadable=str(error))
    if isinstance(parsed, StdinProblem):
        inputs, outputs = [test.stdin for test in parsed.tests], [test.expected for test in parsed.tests]
        if not all(map(is_whole, (*inputs, *outputs))):
            return replace(problem, unreadable="half a character (a lone surrogate)")
        return replace(problem, inputs=tuple(inputs), outputs=tuple(outputs))
    given = json.loads(tests) if isinstance(tests, str) else tests
    if "fn_name" not in given:
        return replace(problem, unreadable="tests are code, not inputs and outputs")
    return replace(
        problem, inputs=tuple(given["inputs"]), outputs=tuple(given["outputs"]), function=str(given["fn_name"])
    )


def _programs(found: Iterable[Any]) -> tuple[str, ...]:
    """The first different programs of a usable size."""
    usable = (text for text in found if isinstance(text, str) and 0 < len(text.strip()) <= MAX_PROGRAM_CHARACTERS)
    return tuple(dict.fromkeys(text for text in usable if is_whole(text)))[:MOST_PROGRAMS]


def apps_row(row: Mapping[str, Any], problem: CodeProblem) -> CodeProblem:
    """A row of APPS or TACO: question, input_output and solutions as JSON, starter_code, picture_num.

    Raises:
        BadRow, RowError: no question.
    """
    _needs(row, "question", "input_output")
    starter = row.get("starter_code") or ""
    marks = ("picture",) if str(row.get("picture_num") or "0").strip() not in ("0", "0.0") else ()
    solutions = row.get("solutions") or []
    if isinstance(solutions, str):
        try:
            solutions = json.loads(solutions)
        except (ValueError, RecursionError):
            # Not fatal: the programs are only there to try the tests.
            solutions = []
    problem = replace(
        problem,
        problem=text_of_cell(row["question"], "question"),
        starter=starter.strip() if isinstance(starter, str) and is_whole(starter) else "",
        programs=_programs(solutions if isinstance(solutions, Sequence) else ()),
        marks=marks,
    )
    return _with_tests(problem, row["input_output"] or {"inputs": [], "outputs": []})


def code_contests_row(row: Mapping[str, Any], problem: CodeProblem) -> CodeProblem:
    """A row of CodeContests: description; public, private and generated tests; solutions with their languages.

    Raises:
        BadRow, RowError: no description, or tests that are no mapping.
    """
    _needs(row, "description", "public_tests")
    pairs: dict[str, list[Any]] = {"inputs": [], "outputs": []}
    for name in ("public_tests", "private_tests", "generated_tests"):
        tests = row.get(name) or {}
        if not isinstance(tests, Mapping):
            raise BadRow(f"{name} must have input and output, got {str(tests)[:40]!r}")
        pairs["inputs"] += tests.get("input") or []
        pairs["outputs"] += tests.get("output") or []
    solutions = row.get("solutions") or {}
    named = zip(solutions.get("language") or (), solutions.get("solution") or (), strict=False)
    files = [name for name in ("input_file", "output_file") if str(row.get(name) or "").strip()]
    problem = replace(
        problem,
        problem=text_of_cell(row["description"], "description"),
        programs=_programs(text for language, text in named if language in (_PYTHON_3, "PYTHON3")),
        marks=("file",) if files else (),
    )
    return _with_tests(problem, pairs)


def codeforces_row(row: Mapping[str, Any], problem: CodeProblem) -> CodeProblem:
    """A problem of the Codeforces submissions: its sections in order, examples, ``test_cases``, accepted programs.

    Raises:
        BadRow, RowError: no description, or tests that are no list of pairs.
    """
    _needs(row, "problem-description", "test_cases")
    parts = [text_of_cell(row["problem-description"], "problem-description")]
    for heading, column in (("Input", "input-specification"), ("Output", "output-specification")):
        if row.get(column):
            parts.append(f"{heading}\n{text_of_cell(row[column], column)}")
    for given, wanted in zip(row.get("demo-input") or (), row.get("demo-output") or (), strict=False):
        parts.append(f"Example input\n{str(given).strip()}\nExample output\n{str(wanted).strip()}")
    if row.get("note"):
        parts.append(f"Note\n{text_of_cell(row['note'], 'note')}")
    tests = row["test_cases"] or []
    if not isinstance(tests, Sequence) or not all(isinstance(test, Mapping) for test in tests):
        raise BadRow(f"test_cases must be a list of pairs, got {str(tests)[:40]!r}")
    marks = ("interactive",) if "interactive" in [str(tag).lower() for tag in row.get("tags") or ()] else ()
    text = "\n\n".join(parts)
    if not is_whole(text):
        raise BadRow("half a character (a lone surrogate) in the examples")
    problem = replace(problem, problem=text, programs=_programs(row.get(SUBMISSION_PROGRAMS) or ()), marks=marks)
    return _with_tests(
        problem, {"inputs": [test.get("input") for test in tests], "outputs": [test.get("output") for test in tests]}
    )


def _needs(row: Mapping[str, Any], *columns: str) -> None:
    missing = [name for name in columns if name not in row]
    if missing:
        raise BadRow(f"no column {missing[0]}; it has {', '.join(map(str, row)) or 'none'}")
