# SPDX-License-Identifier: Apache-2.0
"""Grade answers that were generated elsewhere: rows with a gold answer and a response."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from prime_ext.tasks.cells import read_cell
from prime_ext.utils.fields import check_text, get_field, get_text, parse_rows
from prime_ext.utils.files import write_json_lines
from prime_ext.utils.rows import BadRow
from prime_ext.utils.run_store import Row, RunError
from prime_ext.verifiers.judging import Query, judge_all, make_verifier
from prime_ext.verifiers.sources import UnknownSource, choice_options, find_source

from .formats import align_columns, format_interval, format_number, format_percent, format_score
from .statistics import average
from .verdicts import build_verdict_fields

# How a response states a bare answer, by the task of its verifier; others get the answer itself.
_STATEMENTS = {
    "math": "\\boxed{{{}}}",
    "reasoning_gym": "\\boxed{{{}}}",
    "choice": "#### {}",
    "code": "```python\n{}\n```",
}
# The first of these fields that a row has tells problems apart; without any, each row is one.
_PROBLEM = ("problem", "question", "prompt", "id")
_HEAD = (
    *("data source", "problems", "responses", "score ± SE, %", "95 % interval"),
    *("correct", "wrong", "no answer, %", "not judged"),
)


@dataclass(frozen=True)
class StoredResponse:
    """A row with what a verifier needs of it; responses to one problem have equal ``problem``."""

    row: Mapping[str, Any]
    data_source: str
    task: str
    response: str
    gold: str
    options: Mapping[str, Any]
    problem: str | None


def read_response(row: Mapping[str, Any], data_source: str | None) -> StoredResponse:
    """Read a row; ``data_source`` stands for its own. Raises BadRow."""
    source_name = data_source or get_text(row, "data_source")
    try:
        source = find_source(source_name)
    except UnknownSource as error:
        raise BadRow(str(error).partition(";")[0]) from error
    options = dict(source.options)
    if source.task == "choice":
        options |= _read_options(row)
    _, value = get_field(row, "gold")
    gold = read_cell(value, "gold")
    if "response" in row or "answer" not in row:
        response = get_text(row, "response", "answer", may_be_empty=True)
    elif row["answer"] is None or row["answer"] == "":
        # Nothing was found in the response.
        response = ""
    else:
        response = _STATEMENTS.get(source.task, "{}").format(read_cell(row["answer"], "answer"))
    # Values of parquet that JSON does not have, such as dates, become texts.
    plain = json.loads(json.dumps(dict(row), default=str))
    unit = next((json.dumps(plain[name]) for name in _PROBLEM if name in row), None)
    return StoredResponse(plain, source_name, source.task, response, gold, options, unit)


def _read_options(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return names or number of the options, of the row or its ``extra_info``. Raises BadRow."""
    extra = row.get("extra_info")
    known = {**(extra if isinstance(extra, Mapping) else {}), **row}
    options = known.get("options")
    if options is not None:
        if not isinstance(options, list) or not options:
            raise BadRow(f"options must be a list of texts, got {str(options)[:60]!r}")
        for position, name in enumerate(options, start=1):
            check_text(name, f"options {position}")
    count = known.get("n_options")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 2):
        raise BadRow(f"n_options must be a number from 2, got {count!r}")
    return choice_options(known)


def grade_file(path: Path, data_source: str | None) -> tuple[Path, list[StoredResponse], list[Row]]:
    """Judge all rows of a file; write them with their verdicts next to it.

    Returns the file that was written, what was judged, and the verdicts' fields. Raises
    ``SourceError`` or ``RunError``: a row cannot be judged, or there is no sandbox for programs.
    """
    if data_source is not None:
        try:
            find_source(data_source)
        except UnknownSource as error:
            known = str(error).rpartition("Known: ")[2]
            raise RunError(
                f"no verifier for --data-source {data_source}; known: {known}; --modules MODULE"
                " adds one of yours"
            ) from error
    stored = [
        answer for _, answer in parse_rows(path, partial(read_response, data_source=data_source))
    ]
    verifiers = {task: make_verifier(task) for task in {answer.task for answer in stored}}
    queries = [
        Query(verifiers[answer.task], answer.response, answer.gold, answer.options)
        for answer in stored
    ]
    with tqdm(total=len(stored), desc="graded", unit=" responses", file=sys.stderr) as bar:
        verdicts = judge_all(queries, lambda number, verdict: bar.update())
    fields = list(map(build_verdict_fields, verdicts))
    output = path.with_name(f"{Path(path.name.removesuffix('.gz')).stem}.graded.jsonl")
    write_json_lines(
        output, [{**answer.row, **verdict} for answer, verdict in zip(stored, fields, strict=True)]
    )
    return output, stored, fields


def format_verdicts(stored: Sequence[StoredResponse], fields: Sequence[Row]) -> str:
    """Return the table of verdicts, a line for each data source; every problem counts the same."""
    lines = []
    for source in sorted({answer.data_source for answer in stored}):
        judged = [
            (answer.problem or index, verdict)
            for index, (answer, verdict) in enumerate(zip(stored, fields, strict=True))
            if answer.data_source == source
        ]
        scores: dict[str | int, list[float | None]] = {}
        for problem, verdict in judged:
            scores.setdefault(problem, []).append(verdict["score"])
        estimate = average(list(scores.values()))
        counts = [
            sum(verdict["verdict"] == outcome for _, verdict in judged)
            for outcome in ("correct", "no_answer")
        ]
        failures = sum(verdict["grader_failure"] for _, verdict in judged)
        lines.append(
            [
                source,
                format_number(len(scores)),
                format_number(len(judged)),
                format_score(estimate),
                format_interval(estimate),
                format_number(counts[0]),
                format_number(len(judged) - sum(counts) - failures),
                format_percent(counts[1] / len(judged)),
                format_number(failures),
            ]
        )
    return align_columns([_HEAD, *lines])
