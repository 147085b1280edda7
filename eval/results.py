# SPDX-License-Identifier: Apache-2.0
"""Files of a run: ``results.json`` (measurements) and ``timing.json`` (seconds), and readers."""

import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from prime_ext.utils.files import read_json, write_json
from prime_ext.utils.run_store import Row, RunError, parse_object

from .statistics import average

Key = tuple[str, int]
FORMAT = 1
RESULTS = "results.json"
TIMING = "timing.json"
# Of a task's folder: a line per response, per judged response, per problem.
RESPONSES = "responses.jsonl"
FAILED = "failed.jsonl"
SAMPLES = "samples.jsonl"
PROBLEMS = "problems.jsonl"
# Whatever responses and verdicts may depend on.
_PACKAGES = ("prime-ext", "transformers", "tokenizers", "torch", "vllm", "mpmath", "numpy")


def get_key(row: Mapping[str, Any]) -> Key:
    """Return problem and number of a response."""
    return row["problem"], row["sample"]


def versions() -> dict[str, str]:
    """Return versions of Python and of the packages that are installed."""
    installed = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


def add_timing(
    folder: Path,
    name: str,
    generation: float = 0.0,
    grading: float = 0.0,
    responses: int = 0,
    tokens: int = 0,
) -> None:
    """Add a session's seconds and tokens to those of a task in ``timing.json``.

    They are not in ``results.json``, which is the same for the same responses.
    """
    path = folder / TIMING
    content = read_json(path) if path.exists() else {"tasks": {}}
    new = {"seconds": {"generation": 0.0, "grading": 0.0}, "responses": 0, "response_tokens": 0}
    task = content["tasks"].setdefault(name, new)
    task["seconds"]["generation"] += generation
    task["seconds"]["grading"] += grading
    task["responses"] += responses
    task["response_tokens"] += tokens
    spent = task["seconds"]["generation"]
    task["response_tokens_per_second"] = task["response_tokens"] / spent if spent else None
    write_json(path, content)


def read_results(folder: Path) -> dict[str, Any]:
    """Return a run's ``results.json``. Raises ``RunError``: there is none, or another format."""
    path = folder / RESULTS
    if not path.is_file():
        begun = any(folder.glob(f"*/{RESPONSES}"))
        why = "give the --output of eval.run"
        if begun:
            why = "the run is not finished; start it again and it goes on"
        raise RunError(f"{folder} has no {RESULTS}: {why}")
    results = parse_object(path.read_bytes(), str(path))
    if results.get("format") != FORMAT:
        raise RunError(
            f"{path} has format {results.get('format')!r}, not {FORMAT}; choose another folder"
        )
    return results


@dataclass(frozen=True)
class TaskRun:
    """One task of a finished run; ``problems`` lacks those of which every response failed."""

    name: str
    entry: Mapping[str, Any]
    problems: Mapping[str, Sequence[Row]]

    @property
    def n(self) -> int:
        """Responses per problem."""
        return int(self.entry["summary"]["samples_per_problem"])

    @property
    def mean(self) -> Mapping[str, Any] | None:
        """``avg@n``, the score of the task; None where nothing was judged."""
        return self.entry["summary"]["scores"].get(f"avg@{self.n}")

    @property
    def rows(self) -> list[Row]:
        """All judged responses, in order."""
        return [row for rows in self.problems.values() for row in rows]

    @property
    def scores(self) -> list[list[float | None]]:
        """Scores by problem, ``n`` each; None where the response or a decision is missing."""
        judged = [[row["score"] for row in rows] for rows in self.problems.values()]
        missing = self.entry["summary"]["problems"] - len(judged)
        return [
            scores + [None] * (self.n - len(scores))
            for scores in [*judged, *([] for _ in range(missing))]
        ]


@dataclass(frozen=True)
class FinishedRun:
    """A run; ``unfinished`` tasks have responses but no results yet."""

    folder: Path
    results: Mapping[str, Any]
    tasks: Mapping[str, TaskRun]
    unfinished: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name

    @property
    def model(self) -> str:
        """The model as it was given."""
        return str(self.results["model"]["model"])


def load_run(folder: Path) -> FinishedRun:
    """Read a run. Raises ``RunError``: it is absent, broken, contradictory, of another format."""
    results = read_results(folder)
    timing = folder / TIMING
    spent: Mapping[str, Any] = {}
    if timing.is_file():
        spent = parse_object(timing.read_bytes(), str(timing)).get("tasks", {})
    tasks = {}
    try:
        for name, entry in results["tasks"].items():
            tasks[name] = _load_task(folder, name, {**entry, **spent.get(name, {})})
        str(results["model"]["model"])
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{folder}: {RESULTS} is not what eval.run writes ({error!r}); run eval.run again"
        ) from error
    if not tasks:
        raise RunError(f"{folder / RESULTS} has no finished task")
    begun = sorted(path.parent.name for path in folder.glob(f"*/{RESPONSES}"))
    return FinishedRun(folder, results, tasks, tuple(name for name in begun if name not in tasks))


def _load_task(folder: Path, name: str, entry: Mapping[str, Any]) -> TaskRun:
    """Read a task whose judged responses are those that ``results.json`` was made from."""
    path = folder / name / SAMPLES
    again = "run eval.run again"
    if not path.is_file():
        raise RunError(f"{path} does not exist, but {RESULTS} has the task; {again}")
    problems: dict[str, dict[int, Row]] = {}
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, start=1):
        row = parse_object(line, f"{path} line {number}")
        problem, sample = get_key(row)
        problems.setdefault(problem, {})[sample] = row
    task = TaskRun(
        name, entry, {problem: list(rows.values()) for problem, rows in problems.items()}
    )
    expected = entry["summary"]["problems"] * task.n - entry["failed_responses"]
    if len(lines) != expected or len(task.rows) != expected:
        there = f"{len(lines)} lines for {len(task.rows)} responses"
        raise RunError(f"{path} has {there}, {RESULTS} says {expected}; {again}")
    try:
        estimate = average(task.scores)
    except ValueError as error:
        raise RunError(f"{path}: {error}; {again}") from error
    computed, recorded = (None if mean is None else mean["value"] for mean in (estimate, task.mean))
    if (recorded is None) != (computed is None) or abs((recorded or 0) - (computed or 0)) > 1e-9:
        raise RunError(f"{path} has a mean score of {computed}, {RESULTS} says {recorded}; {again}")
    return task
