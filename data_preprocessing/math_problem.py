# SPDX-License-Identifier: Apache-2.0
"""A math problem on its way from a source to RL: the form that stages work on, and how rows of sources become it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prime_ext.tasks.cells import text_of_cell
from prime_ext.utils.rows import BadRow
from prime_ext.verifiers.math.extraction import extract_answer

_GSM8K_ANSWER = re.compile(r"####[ \t]*(\S[^\n]*?)\s*$")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
# First those of NuminaMath-CoT and MATH, then those of the AIMO validation sets.
_PROBLEM_COLUMNS = ("problem", "question")
_ANSWER_COLUMNS = ("answer", "expected_answer")


@dataclass(frozen=True, slots=True)
class MathProblem:
    """A problem and its final answer.

    Attributes:
        data_source: decides for the verifier.
        split: of the files it comes from.
        index: number of its row among those of its source and split, from 0, whatever happens to the others.
        problem: what is asked.
        solution: as published; empty if there is none.
        answer: the gold answer; empty if there is none.
    """

    data_source: str
    split: str
    index: int
    problem: str
    solution: str
    answer: str

    def gist(self) -> str:
        """The gold answer, for samples."""
        return self.answer


def gsm8k_row(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Problem, solution and answer of GSM8K's columns: the answer is the number after ``####``, without separators.

    Raises:
        BadRow: a column is missing.
        RowError: it is no text, or empty.
    """
    problem, solution = (_cell(row, (name,)) for name in ("question", "answer"))
    found = _GSM8K_ANSWER.search(solution)
    return problem, solution, _THOUSANDS.sub("", found[1]) if found else ""


def solved_row(row: Mapping[str, Any]) -> tuple[str, str, str]:
    r"""Problem, solution and answer of NuminaMath-CoT's columns and of those like them.

    The answer is the one of its column; without one, what the last ``\boxed{}`` of the solution holds.

    Raises:
        BadRow: a column is missing.
        RowError: it is no text, or the problem is empty.
    """
    problem = _cell(row, _PROBLEM_COLUMNS)
    solution = _optional(row, ("solution",))
    if not solution and not any(name in row for name in _ANSWER_COLUMNS):
        raise BadRow(f"neither column solution nor answer; it has {', '.join(map(str, row))}")
    answer = _optional(row, _ANSWER_COLUMNS)
    return problem, solution, answer or extract_answer(solution) or ""


def _cell(row: Mapping[str, Any], columns: tuple[str, ...]) -> str:
    name = next((name for name in columns if name in row), None)
    if name is None:
        raise BadRow(f"no column {' or '.join(columns)}; it has {', '.join(map(str, row)) or 'none'}")
    return text_of_cell(row[name], name)


def _optional(row: Mapping[str, Any], columns: tuple[str, ...]) -> str:
    """A column that may be missing or empty."""
    name = next((name for name in columns if row.get(name) not in (None, "")), None)
    if name is None or (isinstance(row[name], str) and not row[name].strip()):
        return ""
    return text_of_cell(row[name], name)
