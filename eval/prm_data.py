# SPDX-License-Identifier: Apache-2.0
"""Data to evaluate PRMs on: ProcessBench, PRMBench, and problems with candidate responses."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from prime_ext.tasks.cells import read_cell
from prime_ext.utils.rows import BadRow, read_rows
from prime_ext.utils.run_store import RunError
from prime_ext.utils.text_tokens import Prompt, join_steps
from prime_ext.verifiers.math import MathVerifier
from prime_ext.verifiers.math.answer_extraction import extract_answer
from prime_ext.verifiers.math.notation import normalize

SPLITS = ("gsm8k", "math", "olympiadbench", "omnimath")
PROCESSBENCH = "Qwen/ProcessBench"
PRMBENCH = "hitsmy/PRMBench_Preview"
# Of PRMBench's steps, which are numbered in their texts.
_STEP_NUMBER = re.compile(r"^(?:step\s*)?\d+\.\s*", re.IGNORECASE)


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


def _processbench_rows(data: str, split: str) -> Iterator[Mapping[str, Any]]:
    """Read ``<data>/<split>.json`` (or .jsonl, .parquet); without such a folder, the hub."""
    if not Path(data).is_dir():
        if data != PROCESSBENCH:
            raise RunError(
                f"{data} is not a folder; give one with gsm8k.json and so on, or {PROCESSBENCH} for"
                " the hub"
            )
        import datasets

        return iter(datasets.load_dataset(PROCESSBENCH, split=split))
    paths = [
        path
        for suffix in ("json", "jsonl", "parquet")
        if (path := Path(data) / f"{split}.{suffix}").is_file()
    ]
    if not paths:
        raise RunError(
            f"{data} has no {split}.json, {split}.jsonl or {split}.parquet; --splits chooses others"
        )
    return read_rows(paths[0])


def read_processbench(data: str, split: str, prefix: str, separator: str) -> list[ProcessBenchItem]:
    """Return all rows of a split, with the steps joined into one response.

    ``RunError`` or ``SourceError``: the file does not exist, or a row is not in the format of
    ProcessBench.
    """
    items = []
    for number, row in enumerate(_processbench_rows(data, split), start=1):
        where = f"{data} split {split} row {number}"
        problem, steps, label = (
            _field(row, (name,), where) for name in ("problem", "steps", "label")
        )
        if not steps or not -1 <= label < len(steps):
            raise RunError(f"{where}: label {label} does not fit {len(steps)} steps")
        text, ends = join_steps(steps, prefix, separator)
        name = str(row.get("id", f"{split}-{number - 1}"))
        items.append(
            ProcessBenchItem(name, split, label, LabeledResponse(problem, text, ends, tuple(steps)))
        )
    return items


def _prmbench_rows(data: str) -> Iterator[Mapping[str, Any]]:
    """Read a file, all files of a folder, or the set on the hub."""
    if data == PRMBENCH and not Path(data).exists():
        import datasets

        return iter(datasets.load_dataset(PRMBENCH, split="train"))
    path = Path(data)
    files = (
        sorted(one for kind in ("jsonl", "parquet") for one in path.glob(f"*.{kind}"))
        if path.is_dir()
        else [path]
    )
    if not files or not files[0].is_file():
        raise RunError(
            f"{data} is neither a file nor a folder with .jsonl or .parquet files, nor {PRMBENCH}"
        )
    return chain.from_iterable(map(read_rows, files))


def read_prmbench(data: str, prefix: str, separator: str) -> list[PrmBenchItem]:
    """Return the rows of PRMBench, each once, without the numbers before their steps.

    Its authors remove these numbers too. Numbers of wrong steps beyond the last step have no
    effect, there as here. Raises ``RunError`` or ``SourceError``: the file does not exist, or a row
    is not in the format of PRMBench.
    """
    items: dict[str, PrmBenchItem] = {}
    names = ("idx", "classification", "modified_question", "modified_process", "error_steps")
    for number, row in enumerate(_prmbench_rows(data), start=1):
        where = f"{data} row {number}"
        index, kind, question, steps, wrong = (_field(row, (name,), where) for name in names)
        if (
            not isinstance(steps, list)
            or not steps
            or not all(isinstance(step, str) for step in steps)
        ):
            raise RunError(
                f"{where}: modified_process must be a list of texts, not empty, got"
                f" {str(steps)[:60]!r}"
            )
        if not isinstance(wrong, list) or not all(
            isinstance(step, int) and step > 0 for step in wrong
        ):
            raise RunError(
                f"{where}: error_steps must be a list of numbers from 1 on, got {str(wrong)[:60]!r}"
            )
        steps = [_STEP_NUMBER.sub("", step.strip(), count=1) for step in steps]
        text, ends = join_steps(steps, prefix, separator)
        right = tuple(step not in wrong for step in range(1, len(steps) + 1))
        name = f"{kind}_{index}"
        items.setdefault(
            name,
            PrmBenchItem(name, kind, right, LabeledResponse(question, text, ends, tuple(steps))),
        )
    if not items:
        raise RunError(f"{data} has no rows")
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


def _field(row: Mapping[str, Any], names: Sequence[str], where: str) -> Any:
    for name in names:
        if name in row:
            return row[name]
    raise RunError(f"{where}: no field {' or '.join(map(repr, names))}; it has {sorted(row)}")


def _list(
    row: Mapping[str, Any], names: Sequence[str], where: str, length: int | None = None
) -> list[Any]:
    """Return a list of a row, with one value for each of ``length`` responses."""
    values = _field(row, names, where)
    if not isinstance(values, list) or not values:
        raise RunError(
            f"{where}: {names[0]} must be a list that is not empty, got {str(values)[:60]!r}"
        )
    if length is not None and len(values) != length:
        raise RunError(f"{where}: {names[0]} must have one value for each of {length} responses")
    return values


def read_problems(
    path: Path, pattern: str, prefix: str, separator: str, style: str
) -> list[LabeledProblem]:
    """Read problems with candidates; :mod:`eval.prm` describes the file.

    ``pattern`` is the regular expression of what separates the steps of a text, ``prefix`` and
    ``separator`` join lists of steps, and ``style`` is that of the answers
    (:mod:`prime_ext.verifiers.math.answer_extraction`). Raises ``RunError`` or ``SourceError``: the
    file cannot be read, a row does not fit, or only some rows have labels.
    """
    problems = []
    for number, row in enumerate(read_rows(path), start=1):
        where = f"{path} row {number}"
        prompt = _field(row, ("prompt", "problem"), where)
        responses = []
        for place, value in enumerate(_list(row, ("completions", "responses"), where), start=1):
            if (
                isinstance(value, list)
                and value
                and all(isinstance(step, str) and step.strip() for step in value)
            ):
                text, ends = join_steps(value, prefix, separator)
                responses.append(LabeledResponse(prompt, text, ends, tuple(value)))
            elif isinstance(value, str) and value.strip():
                steps, ends = split_response(value, pattern)
                responses.append(LabeledResponse(prompt, value, ends, steps))
            else:
                raise RunError(
                    f"{where}: response {place} must be a text or a list of steps, and not empty"
                )
        correct = (
            _correctness(row, responses, where, style)
            if "correctness" in row or "gold" in row
            else None
        )
        if problems and (correct is None) != (problems[0].correct is None):
            raise RunError(f"{where}: correctness or gold must be in all rows or in none")
        answers = _answers(row, responses, correct or [False] * len(responses), where, style)
        problems.append(LabeledProblem(str(row.get("id", number - 1)), responses, correct, answers))
    if not problems:
        raise RunError(f"{path} has no rows")
    return problems


def _correctness(
    row: Mapping[str, Any], responses: list[LabeledResponse], where: str, style: str
) -> list[bool]:
    if "correctness" in row:
        values = _list(row, ("correctness",), where, len(responses))
        if wrong := [value for value in values if value not in (0, 1)]:
            raise RunError(f"{where}: correctness must be 0 or 1, got {wrong[0]!r}")
        return [bool(value) for value in values]
    try:
        gold = read_cell(row["gold"], "gold")
    except BadRow as error:
        raise RunError(f"{where}: {error}") from error
    verdicts = MathVerifier().verify_batch([(r.text, gold) for r in responses], extraction=style)
    failed = next((verdict for verdict in verdicts if verdict.score is None), None)
    if failed is not None:
        raise RunError(
            f"{where}: a response could not be graded ({failed.detail}); give correctness"
        )
    return [verdict.score == 1.0 for verdict in verdicts]


def _answers(
    row: Mapping[str, Any],
    responses: list[LabeledResponse],
    correct: list[bool],
    where: str,
    style: str,
) -> list[str | None]:
    if "answers" in row:
        given = _list(row, ("answers",), where, len(responses))
    else:
        given = [extract_answer(response.text, style) for response in responses]
    # All correct candidates vote for the same answer, however they write it.
    return [
        json.dumps("correct") if right else None if answer is None else normalize(str(answer))
        for answer, right in zip(given, correct, strict=True)
    ]
