# SPDX-License-Identifier: Apache-2.0
"""What a PRM is evaluated on: ProcessBench, and problems with candidate responses."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prime_ext.offline_prm.data import BadData, read_rows
from prime_ext.offline_prm.text import Prompt, join_steps

SPLITS = ("gsm8k", "math", "olympiadbench", "omnimath")
PROCESSBENCH = "Qwen/ProcessBench"


@dataclass(frozen=True)
class Response:
    """A response to be scored.

    Attributes:
        prompt: text or chat messages.
        text: the response.
        char_ends: position after each step.
        steps: texts of the steps.
    """

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
    response: Response


@dataclass
class Problem:
    """A problem with its candidates.

    Attributes:
        answers: what each candidate votes for; None if it has no answer.
    """

    id: str
    responses: list[Response]
    correct: list[bool]
    answers: list[str | None] = field(default_factory=list)


def processbench_rows(data: str, split: str) -> Iterator[Mapping[str, Any]]:
    """Rows of a split, from ``<data>/<split>.json`` (or .jsonl, .parquet), or from the hub if ``data`` is no folder.

    Raises:
        BadData: the folder has no such file.
    """
    if not Path(data).is_dir():
        if data != PROCESSBENCH:
            raise BadData(f"{data} is no folder; give one with gsm8k.json and so on, or {PROCESSBENCH} for the hub")
        import datasets

        yield from datasets.load_dataset(PROCESSBENCH, split=split)
        return
    found = [path for suffix in ("json", "jsonl", "parquet") if (path := Path(data) / f"{split}.{suffix}").is_file()]
    if not found:
        raise BadData(f"{data} has no {split}.json, {split}.jsonl or {split}.parquet; --splits chooses others")
    yield from read_rows(found[0])


def read_processbench(data: str, splits: Sequence[str], prefix: str, separator: str) -> list[ProcessBenchItem]:
    """All rows of the splits, with the steps joined into one response.

    Raises:
        BadData: a row is not in the format of ProcessBench.
    """
    items = []
    for split in splits:
        for number, row in enumerate(processbench_rows(data, split), start=1):
            where = f"{data} split {split} row {number}"
            missing = {"problem", "steps", "label"} - set(row)
            if missing:
                raise BadData(f"{where}: no field {sorted(missing)[0]!r}; it has {sorted(row)}")
            steps, label = row["steps"], row["label"]
            if not steps or not -1 <= label < len(steps):
                raise BadData(f"{where}: label {label} does not fit {len(steps)} steps")
            text, ends = join_steps(steps, prefix, separator)
            response = Response(row["problem"], text, ends, tuple(steps))
            items.append(ProcessBenchItem(str(row.get("id", f"{split}-{number - 1}")), split, label, response))
    return items


def split_response(text: str, pattern: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Steps of a response as it was generated, and where they end: at the separators that ``pattern`` matches."""
    steps, ends, start = [], [], 0
    for match in [*re.finditer(pattern, text), None]:
        stop = match.start() if match else len(text)
        if text[start:stop].strip():
            steps.append(text[start:stop].strip())
            ends.append(start + len(text[start:stop].rstrip()))
            start = stop
    return tuple(steps), tuple(ends)


def _response(prompt: Prompt, value: Any, where: str, pattern: str, prefix: str, separator: str) -> Response:
    if isinstance(value, list) and value and all(isinstance(step, str) and step.strip() for step in value):
        text, ends = join_steps(value, prefix, separator)
        return Response(prompt, text, ends, tuple(value))
    if isinstance(value, str) and value.strip():
        steps, ends = split_response(value, pattern)
        return Response(prompt, value, ends, steps)
    raise BadData(f"{where} must be a text or a list of steps, and not empty; got {str(value)[:60]!r}")


def _field(row: Mapping[str, Any], names: Sequence[str], where: str) -> Any:
    for name in names:
        if name in row:
            return row[name]
    raise BadData(f"{where}: no field {' or '.join(map(repr, names))}; it has {sorted(row)}")


def read_problems(
    path: Path, pattern: str, prefix: str, separator: str, style: str, with_answers: bool
) -> list[Problem]:
    """Problems with candidates: ``prompt`` (or problem), ``completions`` (or responses: texts or lists of steps),
    and ``correctness`` (0 or 1 each) or ``gold``; ``answers`` are found in the texts if they are not given.

    Args:
        pattern: regular expression of what separates the steps of a text.
        prefix, separator: how lists of steps are joined.
        style: how answers are found, see :mod:`prime_ext.verifiers.math.extraction`.
        with_answers: whether answers are needed.

    Raises:
        BadData: a row does not fit.
    """
    problems = []
    for number, row in enumerate(read_rows(path), start=1):
        where = f"{path} row {number}"
        prompt = _field(row, ("prompt", "problem"), where)
        values = _field(row, ("completions", "responses"), where)
        if not isinstance(values, list) or not values:
            raise BadData(f"{where}: there are no responses")
        responses = [
            _response(prompt, value, f"{where}: response {k}", pattern, prefix, separator)
            for k, value in enumerate(values, start=1)
        ]
        problem = Problem(str(row.get("id", number - 1)), responses, _correctness(row, responses, where, style))
        if with_answers:
            problem.answers = _answers(row, problem, where, style)
        problems.append(problem)
    if not problems:
        raise BadData(f"{path} has no rows")
    return problems


def _correctness(row: Mapping[str, Any], responses: list[Response], where: str, style: str) -> list[bool]:
    if "correctness" in row:
        values = row["correctness"]
        if not isinstance(values, list) or len(values) != len(responses):
            raise BadData(f"{where}: correctness must have one value for each of {len(responses)} responses")
        if any(value not in (0, 1) for value in values):
            wrong = next(value for value in values if value not in (0, 1))
            raise BadData(f"{where}: correctness must be 0 or 1, got {wrong!r}")
        return [bool(value) for value in values]
    if "gold" not in row:
        raise BadData(f"{where}: no field 'correctness' or 'gold'; it has {sorted(row)}")
    from prime_ext.verifiers.math import MathVerifier

    verdicts = MathVerifier().verify_batch([(r.text, str(row["gold"])) for r in responses], extraction=style)
    failed = next((verdict for verdict in verdicts if verdict.score is None), None)
    if failed is not None:
        raise BadData(f"{where}: a response could not be graded ({failed.detail}); give correctness")
    return [verdict.score == 1.0 for verdict in verdicts]


def _answers(row: Mapping[str, Any], problem: Problem, where: str, style: str) -> list[str | None]:
    from prime_ext.verifiers.math.extraction import extract_answer
    from prime_ext.verifiers.math.normalize import normalize

    if "answers" in row:
        given = row["answers"]
        if not isinstance(given, list) or len(given) != len(problem.responses):
            raise BadData(f"{where}: answers must have one value for each of {len(problem.responses)} responses")
    else:
        given = [extract_answer(response.text, style) for response in problem.responses]
    # All correct candidates vote for the same answer, however they write it.
    return [
        json.dumps("correct") if correct else None if answer is None else normalize(str(answer))
        for answer, correct in zip(given, problem.correct, strict=True)
    ]
