# SPDX-License-Identifier: Apache-2.0
"""Math problems and their sources: sets on the hub or in local files."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from prime_ext.tasks.cells import describe_columns, find_column, read_cell
from prime_ext.utils.rows import BadRow
from prime_ext.verifiers.math.answer_extraction import extract_answer

from .problem_sources import ProblemSource, SourceProblem

_GSM8K_ANSWER = re.compile(r"####[ \t]*(\S[^\n]*?)\s*$")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
# First those of NuminaMath-CoT and MATH, then those of the AIMO validation sets.
_PROBLEM_COLUMNS = ("problem", "question")
_ANSWER_COLUMNS = ("answer", "expected_answer")


@dataclass(frozen=True, slots=True)
class MathProblem(SourceProblem):
    """A problem, its published solution and its final answer; missing ones are empty."""

    solution: str
    answer: str

    ability: ClassVar[str] = "math"

    def ground_truth(self) -> str:
        return self.answer


def read_gsm8k_row(row: Mapping[str, Any]) -> dict[str, str]:
    """Read a row of GSM8K; the answer is the number after ``####``, without separators."""
    problem = _cell(row, "question")
    solution = _cell(row, "answer")
    match = _GSM8K_ANSWER.search(solution)
    return {
        "problem": problem,
        "solution": solution,
        "answer": _THOUSANDS.sub("", match[1]) if match else "",
    }


def read_solved(row: Mapping[str, Any]) -> dict[str, str]:
    r"""Read NuminaMath-CoT's columns, and those like them, as problem, solution and answer.

    The answer is that of its column, or else the content of the last ``\boxed{}`` of the solution.
    """
    problem = _cell(row, *_PROBLEM_COLUMNS)
    solution = _read_optional(row, "solution")
    if not solution and not any(name in row for name in _ANSWER_COLUMNS):
        raise BadRow(f"neither column solution nor answer; {describe_columns(row)}")
    answer = _read_optional(row, *_ANSWER_COLUMNS) or extract_answer(solution) or ""
    return {"problem": problem, "solution": solution, "answer": answer}


def _cell(row: Mapping[str, Any], *columns: str) -> str:
    name = find_column(row, columns)
    return read_cell(row[name], name)


def _read_optional(row: Mapping[str, Any], *columns: str) -> str:
    """Return the text of the first column that is present and not empty, or an empty text."""
    name = next(
        (name for name in columns if row.get(name) is not None and str(row[name]).strip()), None
    )
    return "" if name is None else read_cell(row[name], name)


MATH_SOURCES = (
    ProblemSource(
        "gsm8k",
        "GSM8K, grade-school word problems",
        MathProblem,
        read_gsm8k_row,
        hub="openai/gsm8k",
        data_source="openai/gsm8k",
        config="main",
        local={"train": "gsm8k/train.jsonl", "test": "gsm8k/test.jsonl"},
    ),
    ProblemSource(
        "math",
        "MATH, competition problems",
        MathProblem,
        read_solved,
        hub="DigitalLearningGmbH/MATH-lighteval",
        data_source="DigitalLearningGmbH/MATH-lighteval",
        local={"train": "math/train.jsonl"},
        id_column="unique_id",
    ),
    ProblemSource(
        "numina",
        "NuminaMath-CoT",
        MathProblem,
        read_solved,
        hub="AI-MO/NuminaMath-CoT",
        data_source="numina_{source}",
        local={"train": "numina/train.jsonl"},
        id_column="id",
    ),
    ProblemSource(
        "own",
        "a file of your own, by --input: columns problem (or question), answer or solution, source",
        MathProblem,
        read_solved,
        hub="",
        data_source="math/{source}",
        id_column="id",
    ),
)
