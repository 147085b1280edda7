# SPDX-License-Identifier: Apache-2.0
"""Programming problems and their sources: APPS, TACO, CodeContests and Codeforces.

The columns are those on the Hugging Face hub of ``codeparrot/apps``, ``BAAI/TACO``,
``deepmind/code_contests`` and ``MatrixStudio/Codeforces-Python-Submissions``.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from prime_ext.tasks.cells import cell, read_cell
from prime_ext.tasks.value_types import is_whole
from prime_ext.utils.rows import BadRow
from prime_ext.verifiers.code.cases import MalformedTests, PairProblem, parse_test_cases
from prime_ext.verifiers.code.program_extraction import MAX_PROGRAM_CHARACTERS

from .problem_sources import Numbered, ProblemSource, SourceProblem

# Programs that are kept per problem to try its tests; CodeContests has hundreds.
MOST_PROGRAMS = 8
# CodeContests' number for Python 3; 1 is Python 2.
_PYTHON_3 = 3
_ACCEPTED = "OK"
SUBMISSION_PROGRAMS = "accepted_programs"
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CodeProblem(SourceProblem):
    """A problem with its tests, and programs that are said to solve it.

    Empty texts stand for missing parts.

    Attributes:
        inputs, outputs: of the tests, as in :mod:`prime_ext.verifiers.code.cases`.
        function: name of the function that the tests call; else they are standard input and output.
        starter: code that the program has to begin with.
        programs: Python 3 programs that are said to be right. Nobody has looked at them: they may
            be hostile.
        unreadable: why the tests cannot be read.
        marks: properties from columns of the source: ``picture``, ``interactive``, ``file``.
    """

    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()
    function: str = ""
    starter: str = ""
    programs: tuple[str, ...] = ()
    unreadable: str = ""
    marks: tuple[str, ...] = ()

    ability: ClassVar[str] = "code"

    def gist(self) -> str:
        return f"{len(self.inputs)} tests" + (f" of {self.function}" if self.function else "")

    def ground_truth(self) -> str:
        """Return the tests as Eurus-2-RL-Data writes them."""
        tests: dict[str, Any] = {"inputs": list(self.inputs), "outputs": list(self.outputs)}
        return json.dumps(tests | ({"fn_name": self.function} if self.function else {}))

    def statement(self) -> str:
        """Return the problem and, if the tests call a function, how its program has to begin."""
        if self.starter:
            return f"{self.problem}\n\nBegin with this code:\n```python\n{self.starter}\n```"
        if self.function:
            return f"{self.problem}\n\nName the function `{self.function}`."
        return self.problem


def _read_tests(tests: Any) -> Fields:
    """Return the tests of a problem, or the reason why they cannot be read."""
    try:
        parsed = parse_test_cases(tests)
    except MalformedTests as error:
        return {"unreadable": str(error)}
    if isinstance(parsed, PairProblem) and parsed.function is None:
        inputs, outputs = zip(*parsed.tests, strict=True)
        if not all(map(is_whole, (*inputs, *outputs))):
            return {"unreadable": "half a character (a lone surrogate)"}
        return {"inputs": inputs, "outputs": outputs}
    content = json.loads(tests) if isinstance(tests, str) else tests
    if "fn_name" not in content:
        return {"unreadable": "tests are code, not inputs and outputs"}
    calls = {"inputs": tuple(content["inputs"]), "outputs": tuple(content["outputs"])}
    return {**calls, "function": str(content["fn_name"])}


def _choose_programs(candidates: Iterable[Any]) -> tuple[str, ...]:
    """Return the first distinct programs of a usable size."""
    usable = (
        text
        for text in candidates
        if isinstance(text, str) and 0 < len(text.strip()) <= MAX_PROGRAM_CHARACTERS
    )
    return tuple(dict.fromkeys(text for text in usable if is_whole(text)))[:MOST_PROGRAMS]


def read_apps_row(row: Mapping[str, Any]) -> Fields:
    """Read a row of APPS or TACO, whose ``input_output`` and ``solutions`` are JSON."""
    question = cell(row, "question")
    tests = cell(row, "input_output")
    starter = row.get("starter_code") or ""
    solutions = row.get("solutions") or []
    if isinstance(solutions, str):
        try:
            solutions = json.loads(solutions)
        except (ValueError, RecursionError):
            # Not fatal: the programs are only there to try the tests.
            solutions = []
    return {
        "problem": read_cell(question, "question"),
        "starter": starter.strip() if isinstance(starter, str) and is_whole(starter) else "",
        "programs": _choose_programs(solutions if isinstance(solutions, Sequence) else ()),
        "marks": ("picture",)
        if str(row.get("picture_num") or "0").strip() not in ("0", "0.0")
        else (),
        **_read_tests(tests or {"inputs": [], "outputs": []}),
    }


def read_code_contests_row(row: Mapping[str, Any]) -> Fields:
    """Read a CodeContests row: description, three columns of tests, solutions with languages."""
    description = cell(row, "description")
    _ = cell(row, "public_tests")
    pairs: dict[str, list[Any]] = {"inputs": [], "outputs": []}
    for name in ("public_tests", "private_tests", "generated_tests"):
        tests = row.get(name) or {}
        if not isinstance(tests, Mapping):
            raise BadRow(f"{name} must have input and output, got {str(tests)[:40]!r}")
        pairs["inputs"] += tests.get("input") or []
        pairs["outputs"] += tests.get("output") or []
    solutions = row.get("solutions") or {}
    named = zip(solutions.get("language") or (), solutions.get("solution") or (), strict=False)
    files = any(str(row.get(name) or "").strip() for name in ("input_file", "output_file"))
    return {
        "problem": read_cell(description, "description"),
        "programs": _choose_programs(
            text for language, text in named if language in (_PYTHON_3, "PYTHON3")
        ),
        "marks": ("file",) if files else (),
        **_read_tests(pairs),
    }


def read_codeforces_row(row: Mapping[str, Any]) -> Fields:
    """Read a Codeforces problem: sections in order, examples, ``test_cases``, accepted programs."""
    parts = [read_cell(cell(row, "problem-description"), "problem-description")]
    tests = cell(row, "test_cases") or []
    for heading, column in (("Input", "input-specification"), ("Output", "output-specification")):
        if row.get(column):
            parts.append(f"{heading}\n{read_cell(row[column], column)}")
    for stdin, stdout in zip(
        row.get("demo-input") or (), row.get("demo-output") or (), strict=False
    ):
        parts.append(f"Example input\n{str(stdin).strip()}\nExample output\n{str(stdout).strip()}")
    if row.get("note"):
        parts.append(f"Note\n{read_cell(row['note'], 'note')}")
    if not isinstance(tests, Sequence) or not all(isinstance(test, Mapping) for test in tests):
        raise BadRow(f"test_cases must be a list of pairs, got {str(tests)[:40]!r}")
    text = "\n\n".join(parts)
    if not is_whole(text):
        raise BadRow("half a character (a lone surrogate) in the examples")
    pairs = {
        "inputs": [test.get("input") for test in tests],
        "outputs": [test.get("output") for test in tests],
    }
    return {
        "problem": text,
        "programs": _choose_programs(row.get(SUBMISSION_PROGRAMS) or ()),
        "marks": ("interactive",)
        if "interactive" in [str(tag).lower() for tag in row.get("tags") or ()]
        else (),
        **_read_tests(pairs),
    }


def join_submissions(rows: Numbered) -> Numbered:
    """Yield one row per problem: its first submission, with the programs that were accepted.

    A problem is a ``contestId`` and an ``index``; a program counts if its ``verdict`` is OK and its
    ``programmingLanguage`` a Python 3. Rows that name no problem are bad ones. All problems are
    held in memory.
    """
    problems: dict[str, tuple[int, dict[str, Any]]] = {}
    for number, row in rows:
        if isinstance(row, BadRow):
            yield number, row
            continue
        if row.get("contestId") is None or row.get("index") is None:
            yield number, BadRow("no contestId and index, which name the problem")
            continue
        name = f"{row['contestId']} {row['index']}"
        if name not in problems:
            kept = {
                column: value
                for column, value in row.items()
                if column not in ("code", "prompt", "response")
            }
            problems[name] = number, {**kept, SUBMISSION_PROGRAMS: []}
        programs = problems[name][1][SUBMISSION_PROGRAMS]
        python = "3" in str(row.get("programmingLanguage", "")) and isinstance(row.get("code"), str)
        if row.get("verdict") == _ACCEPTED and python and len(programs) < MOST_PROGRAMS:
            programs.append(row["code"])
    yield from problems.values()


CODE_SOURCES = (
    ProblemSource(
        "apps",
        "APPS, problems of programming contests and interviews",
        CodeProblem,
        read_apps_row,
        hub="codeparrot/apps",
        # Its loader is a script, which the datasets library no longer runs.
        hub_files={"train": "train.jsonl", "test": "test.jsonl"},
        local={"train": "apps/train.jsonl"},
        id_column="problem_id",
    ),
    ProblemSource(
        "codecontests",
        "CodeContests, the training data of AlphaCode",
        CodeProblem,
        read_code_contests_row,
        hub="deepmind/code_contests",
        hub_splits={"train": "train", "validation": "valid", "test": "test"},
        local={"train": "codecontests/train.jsonl"},
        # Names are not unique across sites, so only the stages look for duplicates.
    ),
    ProblemSource(
        "taco",
        "TACO, problems of APPS, CodeContests and further sites",
        CodeProblem,
        read_apps_row,
        hub="BAAI/TACO",
        hub_files={"train": "ALL/train-*.parquet", "test": "ALL/test-*.parquet"},
        local={"train": "taco/train.jsonl"},
    ),
    ProblemSource(
        "codeforces",
        "Codeforces, from a set of submissions in Python",
        CodeProblem,
        read_codeforces_row,
        hub="MatrixStudio/Codeforces-Python-Submissions",
        local={"train": "codeforces/train.jsonl"},
        joined=join_submissions,
    ),
)
