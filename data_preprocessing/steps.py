# SPDX-License-Identifier: Apache-2.0
"""Runs the stages of a pipeline over parts of the rows.

Stages that look at one problem at a time and follow each other make one step; a stage that surveys all rows begins a
step of its own. Every step has a folder of finished parts, so that an interrupted run goes on where it was, and a
change of a later stage leaves the earlier steps as they are.

A further stage is one more line in :data:`STAGES`: its :class:`~data_preprocessing.stage.StageKind` says what its
options are, what it can remove and how it is made, and the rest (settings, parts, resuming, processes, reports) comes
with it. Stages that ask a language model set ``one_process`` and answer a part at a time.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_preprocessing.check_solutions import CHECK_SOLUTIONS
from data_preprocessing.code_rules import RULE_STAGE, TEST_STAGE
from data_preprocessing.decontaminate import DECONTAMINATE
from data_preprocessing.deduplicate import DEDUPLICATE
from data_preprocessing.math_rules import MATH_STAGE
from data_preprocessing.parts import Parts, run_parts
from data_preprocessing.report import BAD, Tally
from data_preprocessing.row_source import Chunk, SplitRows, chunks
from data_preprocessing.stage import SOURCES, Changed, Item, Removal, Rows, Stage, StageKind, read_items
from prime_ext.tasks.cells import RowError
from prime_ext.utils.files import atomic_path, write_text
from prime_ext.utils.rows import BadRow, SourceError

KINDS = (MATH_STAGE, RULE_STAGE, TEST_STAGE, DEDUPLICATE, DECONTAMINATE, CHECK_SOLUTIONS)
STAGES: dict[str, StageKind] = {kind.name: kind for kind in KINDS}
# Parts of another version are not gone on with.
FORMAT = 2
# Files of a part: problems that are left, lines about those that are not, and multiple choice, which is put aside.
ROWS, REMOVED, ASIDE = ".jsonl", ".removed.jsonl", ".choice.jsonl"
CHOICE = "choice"


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


@dataclass
class _Part:
    """What is found out about the rows of a part; ``removed`` are numbers of rows, and lines about them."""

    tally: Tally = field(default_factory=Tally)
    notes: Counter[str] = field(default_factory=Counter)
    removed: list[tuple[int, str]] = field(default_factory=list)
    aside: list[Item] = field(default_factory=list)


@dataclass(frozen=True)
class StepWork:
    """Makes a part of a step with some stages; with ``strict`` a bad row is an error."""

    calls: tuple[StageCall, ...]
    strict: bool

    def __call__(self, rows: Chunk | Path, path: Path) -> dict[str, Any]:
        part = _Part()
        items = list(read_items(rows) if isinstance(rows, Path) else self._read(rows, part))
        for call in self.calls:
            items = _through(call, items, part)
        # In the order of the rows, whichever stage removed them.
        write_text(path.with_suffix(REMOVED), "".join(line for _, line in sorted(part.removed)))
        for suffix, kept in ((ASIDE, part.aside), (ROWS, items)):
            with atomic_path(path.with_suffix(suffix)) as unfinished, unfinished.open("w", encoding="utf-8") as lines:
                lines.writelines(item.line() for item in kept)
        return {"rows": len(items), "notes": dict(part.notes), **part.tally.described()}

    def _read(self, chunk: Chunk, part: _Part) -> Iterator[Item]:
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
                part.tally.read[chunk.split, chunk.source] += 1
                shown = {} if isinstance(raw, BadRow) else {"problem": str(dict(raw)), "answer": ""}
                removal = Removal(BAD, str(error))
                line = part.tally.remove(chunk.split, chunk.source, removal, chunk.file, number, shown)
                part.removed.append((number, line))
                continue
            part.tally.read[chunk.split, problem.data_source] += 1
            yield Item(chunk.source, chunk.file, number, problem)


def _through(call: StageCall, items: Sequence[Item], part: _Part) -> list[Item]:
    """What a stage leaves of some items."""
    of = STAGES[call.name].of
    concerned = [item.problem for item in items if isinstance(item.problem, of)]
    found = iter(_made(call)(concerned) if concerned else ())
    left = []
    for item in items:
        problem = item.problem
        result = next(found) if isinstance(problem, of) else problem
        if isinstance(result, Changed):
            part.notes.update({f"{call.name}: {note}": n for note, n in result.notes.items()})
            result = result.problem
        if not isinstance(result, Removal):
            left.append(replace(item, problem=result))
            continue
        shown = {"problem": problem.problem, "answer": problem.gist()}
        line = part.tally.remove(problem.split, problem.data_source, result, item.file, item.row, shown)
        part.removed.append((item.row, line))
        if result.rule == CHOICE:
            part.aside.append(item)
    return left


def steps_of(stages: Mapping[str, Any]) -> list[list[str]]:
    """The names of the stages that run together. The first step reads the sources and may have no stage."""
    steps: list[list[str]] = [[]]
    for name in stages:
        alone = STAGES[name].survey is not None or STAGES[name].one_process
        if alone or any(STAGES[other].one_process for other in steps[-1]):
            steps.append([])
        steps[-1].append(name)
    return steps


@dataclass
class StepResult:
    """What all steps have given: counts, what surveys found, and the parts of each step, without suffix."""

    tally: Tally = field(default_factory=Tally)
    notes: Counter[str] = field(default_factory=Counter)
    used: list[str] = field(default_factory=list)
    steps: list[list[Path]] = field(default_factory=list)

    @property
    def rows(self) -> list[Path]:
        """Files of the problems that are left."""
        return [path.with_suffix(ROWS) for path in self.steps[-1]]

    def files(self, suffix: str) -> list[Path]:
        """Files of one kind, step by step."""
        return [path.with_suffix(suffix) for step in self.steps for path in step]


def run_steps(
    inputs: Sequence[SplitRows],
    stages: Mapping[str, Any],
    folder: Path,
    *,
    chunk_rows: int,
    workers: int,
    strict: bool,
    data_dir: Path | None,
) -> StepResult:
    """Run all stages.

    Raises:
        SourceError: an input cannot be read, or a survey lacks something.
    """
    result = StepResult()
    identity: dict[str, Any] = {"format": FORMAT, "chunk_rows": chunk_rows, "strict": strict, "stages": []}
    identity["inputs"] = [given.identity() for given in inputs]
    for number, names in enumerate(steps_of(stages)):
        calls = []
        for name in names:
            kind, plan = STAGES[name], None
            if kind.survey is not None:
                rows = Rows(result.rows, folder / f"{number:02d}-survey-parts", identity, workers, data_dir)
                plan = _survey(kind, stages[name], rows, folder / f"{number:02d}-survey")
                result.used += kind.used(plan) if kind.used is not None else []
            calls.append(StageCall(name, stages[name], plan))
        identity["stages"] += [call.identity() for call in calls]
        parts = Parts(folder / f"{number:02d}", identity)
        # The parts of a step are the rows of the next one, by number.
        stream: Iterator[Chunk | Path] = chunks(inputs, chunk_rows) if number == 0 else iter(result.rows)
        first = list(islice(stream, workers))
        # A process costs seconds of imports: no more of them than parts.
        n_workers = 1 if any(STAGES[name].one_process for name in names) else max(len(first), 1)
        made = run_parts(chain(first, stream), StepWork(tuple(calls), strict), parts, n_workers)
        total = None if number == 0 else len(result.rows)
        paths = []
        try:
            title = ", ".join(names) or "reading"
            for part, summary in tqdm(made, title, total, unit=" parts", disable=not sys.stderr.isatty()):
                result.tally.add(Tally.restored(summary))
                result.notes.update(summary["notes"])
                paths.append(parts.path(part))
        finally:
            for close in [STAGES[name].close for name in names]:
                if close is not None:
                    close()
        result.steps.append(paths)
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
