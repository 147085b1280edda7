# SPDX-License-Identifier: Apache-2.0
"""Runs the stages of a pipeline over parts of the rows.

Stages that look at one problem at a time and follow each other make one step; a stage that surveys all rows begins a
step of its own. Every step has a folder of finished parts, so that an interrupted run goes on where it was, and a
change of a later stage leaves the earlier steps as they are.

A further stage is a :class:`~data_preprocessing.stage.Stage` and one more name in :data:`STAGES`.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_preprocessing.check_solutions import CheckSolutions
from data_preprocessing.code_rules import CodeRules, CodeTests
from data_preprocessing.decontaminate import Decontaminate
from data_preprocessing.deduplicate import Deduplicate
from data_preprocessing.math_rules import MathRules
from data_preprocessing.parts import Parts, run_parts
from data_preprocessing.report import BAD, removal_record
from data_preprocessing.row_source import Chunk, Problem, SplitRows, chunks
from data_preprocessing.stage import SOURCES, Changed, Removal, Rows, Stage, read_problems
from prime_ext.tasks.cells import RowError
from prime_ext.utils.files import write_json_lines
from prime_ext.utils.rows import BadRow, SourceError

STAGES: dict[str, type[Stage]] = {
    kind.name: kind for kind in (MathRules, CodeRules, CodeTests, Deduplicate, Decontaminate, CheckSolutions)
}
# Parts of another version are not gone on with.
FORMAT = 3
# Files of a part: problems that are left, and records about those that are not.
ROWS, REMOVED = ".jsonl", ".removed.jsonl"
CHOICE = "choice"


@dataclass(frozen=True)
class StepWork:
    """Makes a part of a step with some stages and the files of their surveys; with ``strict`` a bad row is an error."""

    stages: tuple[tuple[Stage, Path | None], ...]
    strict: bool

    def __call__(self, rows: Chunk | Path, path: Path) -> dict[str, Any]:
        read: Counter[tuple[str, str]] = Counter()
        notes: Counter[str] = Counter()
        removed: list[dict[str, Any]] = []
        problems = list(read_problems(rows) if isinstance(rows, Path) else self._read(rows, read, removed))
        for stage, plan in self.stages:
            problems = list(_through(stage, plan, problems, notes, removed))
        write_json_lines(path.with_suffix(REMOVED), removed)
        write_json_lines(path.with_suffix(ROWS), [asdict(problem) for problem in problems])
        return {"notes": notes, "read": [[*key, n] for key, n in read.items()]}

    def _read(self, chunk: Chunk, read: Counter[tuple[str, str]], removed: list[dict[str, Any]]) -> Iterator[Problem]:
        """The problems of a chunk. Raises SourceError: a bad row, with ``strict``."""
        source = SOURCES[chunk.source]
        for offset, (number, raw) in enumerate(chunk.rows):
            try:
                problem = source.problem(raw, chunk.split, chunk.first + offset, file=chunk.file, row=number)
            except (BadRow, RowError) as error:
                if self.strict:
                    raise SourceError(f"{chunk.file} row {number}: {error}") from error
                read[chunk.split, chunk.source] += 1
                shown = {} if isinstance(raw, BadRow) else {"problem": str(dict(raw)), "answer": ""}
                removal = Removal(BAD, str(error))
                removed.append(removal_record(chunk.split, chunk.source, removal, chunk.file, number, shown))
                continue
            read[chunk.split, problem.data_source] += 1
            yield problem


def _through(
    stage: Stage, plan: Path | None, problems: Sequence[Problem], notes: Counter[str], removed: list[dict[str, Any]]
) -> Iterator[Problem]:
    """What a stage leaves of some problems."""
    concerned = [problem for problem in problems if isinstance(problem, stage.of)]
    found = iter(stage.results(concerned, plan) if concerned else ())
    for problem in problems:
        result = next(found) if isinstance(problem, stage.of) else problem
        if isinstance(result, Changed):
            notes.update({f"{stage.name}: {note}": n for note, n in result.notes.items()})
            result = result.problem
        if not isinstance(result, Removal):
            yield result
            continue
        shown = {"problem": problem.problem, "answer": problem.gist()}
        record = removal_record(problem.split, problem.data_source, result, problem.file, problem.row, shown)
        removed.append({**record, "problem": asdict(problem)} if result.rule == CHOICE else record)


def steps_of(stages: Sequence[Stage]) -> list[list[Stage]]:
    """The stages that run together. The first step reads the sources and may have no stage."""
    steps: list[list[Stage]] = [[]]
    for stage in stages:
        if stage.surveys or stage.one_process or any(other.one_process for other in steps[-1]):
            steps.append([])
        steps[-1].append(stage)
    return steps


@dataclass
class StepResult:
    """What all steps have given.

    Attributes:
        read: rows by split and data source; bad rows, whose data source is not known, under the source's name.
        notes: what stages counted without removing.
        used: what surveys found beside the rows.
        rows: files of the problems that are left.
        removed: files of records about those that are not.
    """

    read: Counter[tuple[str, str]] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    used: list[str] = field(default_factory=list)
    rows: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)

    def records(self) -> Iterator[list[dict[str, Any]]]:
        """Records about removed rows, part by part."""
        for path in self.removed:
            with path.open(encoding="utf-8") as lines:
                yield list(map(json.loads, lines))


def run_steps(
    inputs: Sequence[SplitRows],
    stages: Mapping[str, Stage],
    folder: Path,
    *,
    chunk_rows: int,
    workers: int,
    strict: bool,
    data_dir: Path | None,
) -> StepResult:
    """Run all stages. Raises SourceError: an input cannot be read, or a survey lacks something."""
    result = StepResult()
    identity: dict[str, Any] = {"format": FORMAT, "chunk_rows": chunk_rows, "strict": strict, "stages": []}
    identity["inputs"] = [given.identity() for given in inputs]
    for number, step in enumerate(steps_of(list(stages.values()))):
        work = []
        for stage in step:
            plan = None
            if stage.surveys:
                rows = Rows(result.rows, folder / f"{number:02d}-survey-parts", identity, workers, data_dir)
                plan = _survey(stage, rows, folder / f"{number:02d}-survey")
                result.used += stage.used(plan)
            work.append((stage, plan))
        # What decides about the results. The name of a survey's file says what is in it.
        described = [{"stage": own.name, "options": asdict(own), "plan": plan and plan.name} for own, plan in work]  # type: ignore[call-overload]
        identity["stages"] += described
        parts = Parts(folder / f"{number:02d}", identity)
        # The parts of a step are the rows of the next one, by number.
        stream: Iterator[Chunk | Path] = chunks(inputs, chunk_rows) if number == 0 else iter(result.rows)
        first = list(islice(stream, workers))
        # A process costs seconds of imports: no more of them than parts.
        n_workers = 1 if any(stage.one_process for stage in step) else max(len(first), 1)
        made = run_parts(chain(first, stream), StepWork(tuple(work), strict), parts, n_workers)
        total = None if number == 0 else len(result.rows)
        title = ", ".join(stage.name for stage in step) or "reading"
        paths = []
        try:
            for part, summary in tqdm(made, title, total, unit=" parts", disable=not sys.stderr.isatty()):
                result.read.update({(split, source): n for split, source, n in summary["read"]})
                result.notes.update(summary["notes"])
                paths.append(parts.path(part))
        finally:
            for stage in step:
                stage.close()
        result.rows = [path.with_suffix(ROWS) for path in paths]
        result.removed += [path.with_suffix(REMOVED) for path in paths]
    return result


def _survey(stage: Stage, rows: Rows, folder: Path) -> Path:
    """Run the survey of a stage; its file is named after its content."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / "fresh.jsonl"
    stage.survey(rows, fresh)
    return fresh.rename(folder / f"{hashlib.sha256(fresh.read_bytes()).hexdigest()[:16]}.jsonl")
