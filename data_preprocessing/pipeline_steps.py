# SPDX-License-Identifier: Apache-2.0
"""Runs the stages of a pipeline over parts of the rows.

Stages that look at one problem at a time and follow each other make one step; a stage that surveys all rows begins a
step of its own. Every step has a folder of finished parts, so that an interrupted run goes on where it was, and a
change of a later stage leaves the earlier steps as they are.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_preprocessing.math_parts import shown
from data_preprocessing.row_source import Chunk, SplitRows, chunks
from data_preprocessing.stage import Changed, Removal, Stage, whole
from data_preprocessing.stage_kind import Rows, StageKind
from data_preprocessing.stage_registry import STAGES
from data_preprocessing.stage_rows import SOURCES, Item, read_items
from data_preprocessing.stage_runner import Parts, run_parts
from data_preprocessing.tally import BAD, MAX_SHOWN, Tally
from prime_ext.tasks.cells import RowError
from prime_ext.utils.files import atomic_path
from prime_ext.utils.rows import BadRow, SourceError

# Parts of another version are not gone on with.
FORMAT = 1
ROWS, REMOVED = ".jsonl", ".removed.jsonl"


@dataclass(frozen=True)
class StageCall:
    """A stage as another process can make it: its name, its options and the file of its survey."""

    name: str
    options: Any
    plan: Path | None = None

    def identity(self) -> dict[str, Any]:
        """What decides about its results. The name of a survey's file says what is in it."""
        return {"stage": self.name, "options": asdict(self.options), "plan": self.plan and self.plan.name}


@lru_cache(maxsize=8)
def _made(call: StageCall) -> Stage:
    return STAGES[call.name].make(call.options, call.plan)


@dataclass(frozen=True)
class StepWork:
    """Makes a part of a step: the problems that are left, those that went and why, and counts.

    Attributes:
        calls: the stages.
        strict: a bad row is an error.
    """

    calls: tuple[StageCall, ...]
    strict: bool

    def __call__(self, rows: Chunk | Path, part: Path) -> dict[str, Any]:
        tally, notes = Tally(), Counter[str]()
        removed: list[str] = []
        items = list(read_items(rows) if isinstance(rows, Path) else self._read(rows, tally, removed))
        for call in self.calls:
            items = self._through(call, items, tally, notes, removed)
        with (
            atomic_path(part.with_suffix(REMOVED)) as removed_path,
            atomic_path(part.with_suffix(ROWS)) as rows_path,
            removed_path.open("w", encoding="utf-8") as removed_file,
            rows_path.open("w", encoding="utf-8") as rows_file,
        ):
            removed_file.writelines(removed)
            rows_file.writelines(item.line() for item in items)
        return {"rows": len(items), "notes": dict(notes), **tally.described()}

    def _read(self, chunk: Chunk, tally: Tally, removed: list[str]) -> Iterator[Item]:
        """The problems of a chunk.

        Raises:
            SourceError: a bad row, with ``strict``.
        """
        source = SOURCES[chunk.source]
        for offset, (number, raw) in enumerate(chunk.rows):
            try:
                problem = source.problem(raw, chunk.split, chunk.first + offset)
            except (BadRow, RowError) as error:
                if self.strict:
                    raise SourceError(f"{chunk.file} row {number}: {error}") from error
                tally.read[chunk.split, chunk.source] += 1
                place = {"file": chunk.file, "row": number, "evidence": whole(str(error)[:MAX_SHOWN])}
                tally.remove(chunk.split, chunk.source, BAD, {**place, **shown(raw)})
                removed.append(_record(chunk.split, chunk.source, BAD, place, {}))
                continue
            tally.read[chunk.split, problem.data_source] += 1
            yield Item(chunk.source, chunk.file, number, problem)

    def _through(
        self, call: StageCall, items: Sequence[Item], tally: Tally, notes: Counter[str], removed: list[str]
    ) -> list[Item]:
        """What a stage leaves of some items."""
        concerned = [item for item in items if isinstance(item.problem, STAGES[call.name].of)]
        found = iter(_made(call)([item.problem for item in concerned]) if concerned else ())
        left = []
        for item in items:
            result = next(found) if isinstance(item.problem, STAGES[call.name].of) else item.problem
            if isinstance(result, Changed):
                notes.update({f"{call.name}: {note}": n for note, n in result.notes.items()})
                result = result.problem
            if not isinstance(result, Removal):
                left.append(Item(item.source, item.file, item.row, result))
                continue
            problem = item.problem
            place = {"file": item.file, "row": item.row, "evidence": whole(result.evidence[:MAX_SHOWN])}
            sample = {"problem": problem.problem[:MAX_SHOWN], "answer": problem.gist()[:MAX_SHOWN]}
            tally.remove(problem.split, problem.data_source, result.rule, {**place, **sample, **result.details})
            removed.append(_record(problem.split, problem.data_source, result.rule, place, result.details))
        return left


def _record(split: str, source: str, rule: str, place: Mapping[str, Any], details: Mapping[str, Any]) -> str:
    record = {"split": split, "data_source": source, "rule": rule, **place}
    return json.dumps(record | ({"details": dict(details)} if details else {})) + "\n"


def steps_of(stages: Sequence[tuple[StageKind, Any]]) -> list[list[tuple[StageKind, Any]]]:
    """The stages that run together. The first step reads the sources and may have no stage."""
    steps: list[list[tuple[StageKind, Any]]] = [[]]
    for kind, options in stages:
        alone = kind.survey is not None or kind.one_process
        if alone or any(other.one_process for other, _ in steps[-1]):
            steps.append([])
        steps[-1].append((kind, options))
    return steps


@dataclass
class StepResult:
    """What all steps have given: counts, and the parts of each."""

    tally: Tally
    notes: Counter[str]
    steps: list[list[Path]]
    used: dict[str, list[str]]

    @property
    def rows(self) -> list[Path]:
        """Files of the problems that are left."""
        return [path.with_suffix(ROWS) for path in self.steps[-1]]

    @property
    def removed(self) -> list[Path]:
        """Files of what was removed, step by step."""
        return [path.with_suffix(REMOVED) for step in self.steps for path in step]


def run_steps(
    inputs: Sequence[SplitRows],
    stages: Sequence[tuple[StageKind, Any]],
    folder: Path,
    *,
    chunk_rows: int,
    workers: int,
    strict: bool,
    data_dir: Path | None,
) -> StepResult:
    """Run all stages.

    Args:
        inputs: where the rows are.
        stages: kinds and options, in order.
        folder: for parts.
        chunk_rows: rows of a part.
        workers: processes.
        strict: a bad row is an error.
        data_dir: for surveys.

    Raises:
        SourceError: an input cannot be read, or a survey lacks something.
    """
    result = StepResult(Tally(), Counter(), [], {})
    identity: dict[str, Any] = {"format": FORMAT, "chunk_rows": chunk_rows, "strict": strict, "stages": []}
    identity["inputs"] = [given.identity() for given in inputs]
    for number, step in enumerate(steps_of(stages)):
        calls = []
        for kind, options in step:
            plan = None
            if kind.survey is not None:
                rows = Rows(result.rows, folder / f"{number:02d}-survey-parts", identity, workers, data_dir)
                plan = _survey(kind, options, rows, folder / f"{number:02d}-survey")
                if kind.used is not None:
                    result.used[kind.name] = kind.used(plan)
            calls.append(StageCall(kind.name, options, plan))
        identity["stages"] += [call.identity() for call in calls]
        parts = Parts(folder / f"{number:02d}", identity)
        stream: Iterator[Chunk | Path] = chunks(inputs, chunk_rows) if number == 0 else iter(result.rows)
        first = list(islice(stream, workers))
        # A process costs seconds of imports: no more of them than parts.
        n_workers = 1 if any(kind.one_process for kind, _ in step) else max(len(first), 1)
        # The parts of a step are the rows of the next one, by number.
        made = run_parts(chain(first, stream), StepWork(tuple(calls), strict), parts, n_workers)
        names = ", ".join(kind.name for kind, _ in step) or "reading"
        total = None if number == 0 else len(result.rows)
        try:
            result.steps.append(_collect(made, parts, result, names, total))
        finally:
            for kind, _ in step:
                if kind.close is not None:
                    kind.close()
    return result


def _survey(kind: StageKind, options: Any, rows: Rows, folder: Path) -> Path:
    """Run the survey of a stage; its file is named after its content."""
    assert kind.survey is not None
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / "fresh.jsonl"
    kind.survey(options, rows, fresh)
    plan = folder / f"{hashlib.sha256(fresh.read_bytes()).hexdigest()[:16]}.jsonl"
    fresh.rename(plan)
    return plan


def _collect(
    made: Iterator[tuple[int, dict[str, Any]]], parts: Parts, result: StepResult, names: str, total: int | None
) -> list[Path]:
    """Add up the summaries of a step; its parts without suffix."""
    paths = []
    with tqdm(made, total=total, unit=" parts", desc=names, disable=not sys.stderr.isatty()) as bar:
        for number, summary in bar:
            result.tally.add(Tally.restored(summary))
            result.notes.update(summary["notes"])
            paths.append(parts.path(number, ""))
            bar.set_postfix_str(f"{summary['rows']} rows left in the last one", refresh=False)
    return paths
