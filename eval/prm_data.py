# SPDX-License-Identifier: Apache-2.0
"""Data to evaluate PRMs on: ProcessBench, PRMBench, and problems with candidate responses."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from prime_ext.tasks.cells import read_cell
from prime_ext.utils.fields import (
    Row,
    check_text,
    check_whole,
    get_field,
    get_list,
    get_prompt,
    get_texts,
    parse_numbered,
    parse_rows,
    show_value,
)
from prime_ext.utils.rows import BadRow, read_hub_rows, read_source
from prime_ext.utils.run_store import RunError
from prime_ext.utils.text_tokens import Prompt, join_steps
from prime_ext.verifiers.judging import Query, judge_all, make_verifier
from prime_ext.verifiers.math.answer_extraction import extract_answer
from prime_ext.verifiers.math.notation import normalize

SPLITS = ("gsm8k", "math", "olympiadbench", "omnimath")
PROCESSBENCH = "Qwen/ProcessBench"
LABELS = "labels"
PRMBENCH = "hitsmy/PRMBench_Preview"
_PRMBENCH_NAMES = ("idx", "classification")
# Of PRMBench's steps, which are numbered in their texts; 3.5 is not a number of a step.
_STEP_NUMBER = re.compile(r"^(?:step\s*)?\d+\.(?!\d)\s*", re.IGNORECASE)
Numbered = Iterator[tuple[int, Row | BadRow]]


@dataclass(frozen=True)
class LabeledResponse:
    """A response to be scored; ``char_ends`` are the positions after each step."""

    prompt: Prompt
    text: str
    char_ends: tuple[int, ...]
    steps: tuple[str, ...]


@dataclass(frozen=True)
class ProcessBenchItem:
    """A row of ProcessBench: ``label`` is the first wrong step, -1 for none."""

    id: str
    split: str
    label: int
    response: LabeledResponse


@dataclass(frozen=True)
class PrmBenchItem:
    """A row of PRMBench: the class of its errors, and whether each step is right."""

    id: str
    split: str
    right: tuple[bool, ...]
    response: LabeledResponse


@dataclass(frozen=True)
class LabeledProblem:
    """A problem with its candidates, and whether each is correct, None if unknown.

    ``answers`` are what each candidate votes for, None if it has no answer.
    """

    id: str
    responses: list[LabeledResponse]
    correct: list[bool] | None
    answers: list[str | None]


def _find_processbench_rows(data: str, split: str) -> tuple[str, Numbered]:
    """Return a name and the rows of ``<data>/<split>.json`` (or .jsonl, .parquet), or the hub's."""
    if not Path(data).is_dir():
        if data != PROCESSBENCH:
            raise RunError(
                f"{data} is not a folder; give one with gsm8k.json and so on, or {PROCESSBENCH} for"
                " the hub"
            )
        return f"{data} split {split}", read_hub_rows(PROCESSBENCH, None, split)
    paths = [
        path
        for suffix in ("json", "jsonl", "parquet")
        if (path := Path(data) / f"{split}.{suffix}").is_file()
    ]
    if not paths:
        raise RunError(
            f"{data} has no {split}.json, {split}.jsonl or {split}.parquet; --splits chooses others"
        )
    return str(paths[0]), read_source(paths[0])


def read_processbench(data: str, split: str, prefix: str, separator: str) -> list[ProcessBenchItem]:
    """Return all rows of a split, with the steps joined into one response.

    ``RunError`` or ``SourceError``: the file does not exist, or a row is not in the format of
    ProcessBench.
    """

    def parse(row: Row) -> tuple[Any, int, LabeledResponse]:
        # The second names are those of data_preprocessing.step_labels.
        steps = get_texts(row, "steps", "completions", may_be_empty=True)
        _, label = get_field(row, "label")
        check_whole(label, "label", -1, len(steps) - 1)
        text, ends = join_steps(steps, prefix, separator)
        response = LabeledResponse(get_prompt(row, "problem", "prompt"), text, ends, tuple(steps))
        return row.get("id"), label, response

    where, rows = _find_processbench_rows(data, split)
    return [
        ProcessBenchItem(f"{split}-{index}" if name is None else str(name), split, label, response)
        for index, (_, (name, label, response)) in enumerate(parse_numbered(rows, parse, where))
    ]


def read_first_errors(folder: str, items: Sequence[ProcessBenchItem]) -> list[int | None]:
    """Return the first error of each item from the labels in ``<folder>/<split>.parquet``.

    None where there is none: that response has no label. ``RunError`` or ``SourceError``: a file
    is missing or not of data_preprocessing.step_labels, or has no row of a split.
    """
    first_errors: list[int | None] = []
    for split, rows in groupby(items, key=attrgetter("split")):
        read = read_processbench(folder, split, "", "")
        labels = {(item.id, len(item.response.steps)): item.label for item in read}
        errors = [labels.get((item.id, len(item.response.steps))) for item in rows]
        if all(error is None for error in errors):
            raise RunError(f"{folder} has no labels of the responses of {split}, by their ids")
        first_errors += errors
    return first_errors


def _find_prmbench_rows(data: str) -> list[tuple[str, Numbered]]:
    """Return names and rows of a file, of all files of a folder, or of the set on the hub."""
    if data == PRMBENCH and not Path(data).exists():
        return [(data, read_hub_rows(PRMBENCH, None, "train"))]
    path = Path(data)
    files = (
        sorted(file for kind in ("jsonl", "parquet") for file in path.glob(f"*.{kind}"))
        if path.is_dir()
        else [path]
    )
    if not files or not files[0].is_file():
        raise RunError(
            f"{data} is neither a file nor a folder with .jsonl or .parquet files, nor {PRMBENCH}"
        )
    return [(str(file), read_source(file)) for file in files]


def read_prmbench(data: str, prefix: str, separator: str) -> list[PrmBenchItem]:
    """Return the rows of PRMBench, each once, without the numbers before their steps.

    Its authors remove these numbers too. Numbers of wrong steps beyond the last step have no
    effect, there as here. Raises ``RunError`` or ``SourceError``: the file does not exist, or a row
    is not in the format of PRMBench.
    """

    def parse(row: Row) -> PrmBenchItem:
        index, kind = (read_cell(get_field(row, name)[1], name) for name in _PRMBENCH_NAMES)
        question = get_prompt(row, "modified_question")
        steps = [
            _STEP_NUMBER.sub("", step.strip(), count=1)
            for step in get_texts(row, "modified_process", may_be_empty=True)
        ]
        _, wrong = get_field(row, "error_steps")
        if not isinstance(wrong, list):
            raise BadRow(f"error_steps must be a list, got {show_value(wrong)}")
        for number in wrong:
            check_whole(number, "error_steps: each", 1)
        text, ends = join_steps(steps, prefix, separator)
        right = tuple(step not in wrong for step in range(1, len(steps) + 1))
        response = LabeledResponse(question, text, ends, tuple(steps))
        return PrmBenchItem(f"{kind}_{index}", kind, right, response)

    items: dict[str, PrmBenchItem] = {}
    for where, rows in _find_prmbench_rows(data):
        for _, item in parse_numbered(rows, parse, where):
            items.setdefault(item.id, item)
    return list(items.values())


def split_response(text: str, pattern: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the steps of a response, cut before matches of ``pattern``, and where they end."""
    steps = []
    ends = []
    start = 0
    for match in [*re.finditer(pattern, text), None]:
        stop = match.start() if match else len(text)
        if text[start:stop].strip():
            steps.append(text[start:stop].strip())
            ends.append(start + len(text[start:stop].rstrip()))
            start = stop
    return tuple(steps), tuple(ends)


def read_problems(
    path: Path, pattern: str, prefix: str, separator: str, style: str
) -> list[LabeledProblem]:
    """Read problems with candidates; :mod:`eval.prm` describes the file.

    ``pattern`` is the regular expression of what separates the steps of a text, ``prefix`` and
    ``separator`` join lists of steps, and ``style`` is that of the answers
    (:mod:`prime_ext.verifiers.math.answer_extraction`). Raises ``SourceError``: the file cannot be
    read, a row does not fit, an id repeats, or only some rows have labels.
    """
    problems: dict[str, LabeledProblem] = {}
    labeled = None

    def parse(row: Row) -> LabeledProblem:
        nonlocal labeled
        prompt = get_prompt(row, "prompt", "problem")
        responses = [
            _read_candidate(value, f"response {number}", prompt, pattern, prefix, separator)
            for number, value in enumerate(get_list(row, "completions", "responses"), start=1)
        ]
        has_labels = "correctness" in row or "gold" in row
        labeled = has_labels if labeled is None else labeled
        if has_labels != labeled:
            raise BadRow("correctness or gold must be in all rows or in none")
        correct = _read_correctness(row, responses, style) if has_labels else None
        answers = _read_answers(row, responses, correct or [False] * len(responses), style)
        name = str(len(problems) if row.get("id") is None else row["id"])
        if name in problems:
            raise BadRow(f"the id {name!r} is there a second time")
        return LabeledProblem(name, responses, correct, answers)

    for _, problem in parse_rows(path, parse):
        problems[problem.id] = problem
    return list(problems.values())


def _read_candidate(
    value: Any, name: str, prompt: Prompt, pattern: str, prefix: str, separator: str
) -> LabeledResponse:
    """Read a response, a text or a list of steps. Raises BadRow."""
    if isinstance(value, list) and value:
        steps = [check_text(step, f"{name}: step {number}") for number, step in enumerate(value, 1)]
        text, ends = join_steps(steps, prefix, separator)
        return LabeledResponse(prompt, text, ends, tuple(steps))
    if not isinstance(value, str) or not value.strip():
        raise BadRow(f"{name} must be a text or a list of steps, and not empty")
    pieces, ends = split_response(value, pattern)
    return LabeledResponse(prompt, value, ends, pieces)


def _read_correctness(row: Row, responses: list[LabeledResponse], style: str) -> list[bool]:
    if "correctness" in row:
        values = get_list(row, "correctness", length=len(responses))
        if wrong := [value for value in values if value not in (0, 1)]:
            raise BadRow(f"correctness must be 0 or 1, got {show_value(wrong[0])}")
        return [bool(value) for value in values]
    gold = read_cell(row["gold"], "gold")
    verifier = make_verifier("math")
    options = {"extraction": style}
    verdicts = judge_all([Query(verifier, response.text, gold, options) for response in responses])
    failed = next((verdict for verdict in verdicts if verdict.score is None), None)
    if failed is not None:
        raise BadRow(f"a response could not be graded ({failed.detail}); give correctness")
    return [verdict.score == 1.0 for verdict in verdicts]


def _read_answers(
    row: Row, responses: list[LabeledResponse], correct: list[bool], style: str
) -> list[str | None]:
    if "answers" in row:
        answers = [
            None if value is None else read_cell(value, f"answers {number}")
            for number, value in enumerate(get_list(row, "answers", length=len(responses)), start=1)
        ]
    else:
        answers = [extract_answer(response.text, style) for response in responses]
    # All correct candidates vote for the same answer, however they write it.
    return [
        json.dumps("correct") if right else None if answer is None else normalize(answer)
        for answer, right in zip(answers, correct, strict=True)
    ]
