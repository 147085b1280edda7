# SPDX-License-Identifier: Apache-2.0
"""Reads what ``python -m eval.run`` leaves, and refuses what is broken, half-written or does not fit together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval.run_shape import DECODING, ESTIMATE, NUMBER, REFERENCE, ROW, RUN, SUMMARY, TASK, BadRun, need, parse
from eval.statistics import NoProblems, average

FORMAT = 1
RESULTS, TIMING, SAMPLES, RESPONSES = "results.json", "timing.json", "samples.jsonl", "responses.jsonl"
# Longest answer that is kept in memory; the whole text stays in the file.
_KEPT = 400


@dataclass(frozen=True)
class Judged:
    """A judged response without its long texts.

    Attributes:
        problem: id.
        sample: number of the response to this problem.
        groups: subject, level and so on.
        gold: what is right, shortened.
        verdict: outcome.
        score: in [0, 1]; None where the grader could not decide.
        extracted: the answer, shortened; None if there is none.
        tokens: length of the response.
        truncated: it was cut off at the longest length.
        place: where its line starts in the file, in bytes.
    """

    problem: str
    sample: int
    groups: Mapping[str, str]
    gold: str
    verdict: str
    score: float | None
    extracted: str | None
    tokens: int
    truncated: bool
    place: int


@dataclass(frozen=True)
class TaskRun:
    """One task of a run.

    Attributes:
        name: of the task.
        entry: what ``results.json`` says about it.
        path: file of the judged responses.
        rows: the judged responses, in order.
    """

    name: str
    entry: Mapping[str, Any]
    path: Path
    rows: tuple[Judged, ...]

    @property
    def n(self) -> int:
        """Responses per problem."""
        return int(self.entry["summary"]["samples_per_problem"])

    @property
    def problems(self) -> dict[str, list[Judged]]:
        """The judged responses by problem. A problem of which every response failed is not there."""
        found: dict[str, list[Judged]] = {}
        for row in self.rows:
            found.setdefault(row.problem, []).append(row)
        return found

    @property
    def scores(self) -> list[list[float | None]]:
        """Scores by problem, ``n`` each: None where the grader could not decide or there is no response."""
        judged = [[row.score for row in rows] for rows in self.problems.values()]
        missing = int(self.entry["summary"]["problems"]) - len(judged)
        return [own + [None] * (self.n - len(own)) for own in [*judged, *([] for _ in range(missing))]]

    def texts(self, row: Judged) -> dict[str, Any]:
        """The whole line of a response, with prompt and text."""
        with self.path.open("rb") as lines:
            lines.seek(row.place)
            return parse(lines.readline(), f"{self.path} at byte {row.place}")


@dataclass(frozen=True)
class FinishedRun:
    """A run.

    Attributes:
        folder: where it is.
        results: ``results.json``.
        tasks: by name, in its order.
        unfinished: tasks that have responses but no results yet.
    """

    folder: Path
    results: Mapping[str, Any]
    tasks: Mapping[str, TaskRun]
    unfinished: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """Of the folder."""
        return self.folder.resolve().name

    @property
    def model(self) -> str:
        """The model as it was given."""
        return str(self.results["model"]["model"])


def load_run(folder: Path) -> FinishedRun:
    """Read a run.

    Raises:
        BadRun: it is not there, broken, half-written, of another format, or its files contradict one another.
    """
    path = folder / RESULTS
    if not path.is_file():
        begun = any(folder.glob(f"*/{RESPONSES}"))
        why = "the run is not finished; start it again and it goes on" if begun else "give the --output of eval.run"
        raise BadRun(f"{folder} has no {RESULTS}: {why}")
    results = parse(path.read_bytes(), str(path))
    if results.get("format") != FORMAT:
        raise BadRun(f"{path} has format {results.get('format')!r}, this version reads {FORMAT}; run eval.run again")
    need(results, RUN, str(path))
    need(results["model"], {"model": str}, f"{path}: model")
    if not results["tasks"]:
        raise BadRun(f"{path} has no finished task")
    timing = _timing(folder / TIMING)
    tasks = {
        name: _task(folder, name, entry, timing.get(name, {}), f"{path}: tasks.{name}")
        for name, entry in results["tasks"].items()
    }
    begun_tasks = sorted(own.parent.name for own in folder.glob(f"*/{RESPONSES}"))
    return FinishedRun(folder, results, tasks, tuple(name for name in begun_tasks if name not in tasks))


def _timing(path: Path) -> dict[str, dict[str, Any]]:
    """What was measured of the time by task; a run leaves it beside its results, which do not depend on it."""
    if not path.is_file():
        return {}
    timing = parse(path.read_bytes(), str(path))
    need(timing, {"tasks": dict}, str(path))
    fields = {"seconds": dict, "response_tokens_per_second": (*NUMBER, type(None))}
    for name, own in timing["tasks"].items():
        need(own, fields, f"{path}: tasks.{name}")
    return {name: {key: own[key] for key in fields} for name, own in timing["tasks"].items()}


def _task(folder: Path, name: str, entry: Any, timing: Mapping[str, Any], where: str) -> TaskRun:
    need(entry, TASK, where)
    entry = {**entry, **timing}
    summary = entry["summary"]
    need(summary, SUMMARY, f"{where}.summary")
    need(summary["tokens"], {"mean": NUMBER, "median": NUMBER, "most": int}, f"{where}.summary.tokens")
    need(entry["decoding"], DECODING, f"{where}.decoding")
    parts = {"scores": summary["scores"]} | {f"groups.{key}": own for key, own in summary["groups"].items()}
    for key, own in parts.items():
        need(own, {}, f"{where}.summary.{key}")
        for value, estimate in own.items():
            if estimate is not None:
                need(estimate, ESTIMATE, f"{where}.summary.{key}.{value}")
    for reference in entry["references"]:
        need(reference, REFERENCE, f"{where}.references")
    path = folder / name / SAMPLES
    if not path.is_file():
        raise BadRun(f"{path} does not exist, but {RESULTS} has the task; run eval.run again")
    task = TaskRun(name, entry, path, tuple(_rows(path)))
    _check_rows(task)
    return task


def _rows(path: Path) -> Iterator[Judged]:
    groups: dict[str, Mapping[str, str]] = {}
    with path.open("rb") as lines:
        place = 0
        for number, line in enumerate(lines, start=1):
            where = f"{path} line {number}"
            row = parse(line, where)
            need(row, ROW, where)
            if row["score"] is not None and not 0 <= row["score"] <= 1:
                raise BadRun(f"{where}: score must be in [0, 1], got {row['score']}")
            yield Judged(
                problem=row["problem"],
                sample=row["sample"],
                groups=groups.setdefault(row["problem"], row["groups"]),
                gold=row["gold"][:_KEPT],
                verdict=row["verdict"],
                score=row["score"],
                extracted=None if row["extracted"] is None else row["extracted"][:_KEPT],
                tokens=row["tokens"],
                truncated=row["truncated"],
                place=place,
            )
            place += len(line)


def _check_rows(task: TaskRun) -> None:
    """The judged responses are those that ``results.json`` was made from."""
    again = "run eval.run again"
    summary, failed = task.entry["summary"], task.entry["failed_responses"]
    keys = {(row.problem, row.sample) for row in task.rows}
    wanted = summary["problems"] * task.n - failed
    if len(keys) != len(task.rows) or len(keys) != wanted or any(not 0 <= sample < task.n for _, sample in keys):
        raise BadRun(
            f"{task.path} has {len(task.rows)} lines for {len(keys)} responses, {RESULTS} says {wanted} "
            f"({summary['problems']} problems x {task.n}, {failed} failed); {again}"
        )
    told = summary["scores"].get(f"avg@{task.n}")
    try:
        found = average(task.scores).value
    except NoProblems:
        found = None
    same = told is None and found is None
    if not same and (told is None or found is None or abs(told["value"] - found) > 1e-9):
        says = None if told is None else told["value"]
        raise BadRun(f"{task.path} has a mean score of {found}, {RESULTS} says {says}; {again}")
