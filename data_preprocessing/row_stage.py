# SPDX-License-Identifier: Apache-2.0
"""A stage over files of rows: what it keeps goes to parquet files, what it removes is counted, listed and shown.

Rows are read a chunk at a time. The outputs are moved to their places when everything is done; an interrupted run
leaves none of them.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
from tqdm import tqdm

from data_preprocessing.command import Made, finish, parser_of, unfinished
from data_preprocessing.report import BAD, Tally, markdown, removal_record
from data_preprocessing.rl_input import Row, batched, problem_of, rl_rows, rl_schema_of, unified
from data_preprocessing.stage import Removal
from prime_ext.tasks.rl_rows import RowWriter
from prime_ext.utils.files import write_json, write_text
from prime_ext.utils.rows import BadRow, SourceError

Outcome = list[Row] | Removal
Work = Callable[[Sequence[Row]], Sequence[Outcome]]


@dataclass(frozen=True)
class RowStage:
    """What is done with rows.

    Attributes:
        title: of the report.
        rules: why rows are removed, in the order of the funnel.
        schema: of the outputs, from that of the inputs.
        read: the rows of a file with their numbers.
        read_schema: the schema of a file.
    """

    title: str
    rules: Mapping[str, str]
    schema: Callable[[pa.Schema], pa.Schema] = lambda schema: schema
    read: Callable[[Path], Iterator[tuple[int, Row | BadRow]]] = rl_rows
    read_schema: Callable[[Path], pa.Schema] = rl_schema_of


@dataclass(frozen=True)
class Plan:
    """Which files go where.

    Each input makes a parquet file of its name. The rows of ``first`` go, as they are, before those of the single
    input, and the output then has its name.
    """

    inputs: Sequence[Path]
    folder: Path
    chunk_rows: int = 500
    strict: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    first: Path | None = None

    def outputs(self) -> dict[Path, Path]:
        """The output of each input.

        Raises:
            SourceError: two inputs have one name, or an output would replace an input.
        """
        if self.first is not None and len(self.inputs) != 1:
            raise SourceError(f"rows can be put after those of {self.first} only from one file, not {len(self.inputs)}")
        names = {path: f"{(self.first or path).name.split('.')[0]}.parquet" for path in self.inputs}
        if len(names) < len(self.inputs) or len(set(names.values())) < len(names):
            raise SourceError("the input files must have different names, because the outputs are called like them")
        found = {path: self.folder / name for path, name in names.items()}
        read = {path.resolve() for path in (*self.inputs, self.first) if path is not None}
        for path in found.values():
            if path.resolve() in read:
                raise SourceError(f"{path} is an input and would be replaced; give another --output-dir")
        return found


def run_stage(stage: RowStage, work: Work, plan: Plan) -> Made:
    """Work on all rows and write. Returns the report and the parquet files.

    ``work`` says for every row of a chunk what rows come of it, or why it is removed.
    """
    outputs = plan.outputs()
    schemas = {path: stage.schema(stage.read_schema(path)) for path in plan.inputs}
    before = [] if plan.first is None else [plan.first]
    tally, written = Tally(), {}
    with unfinished(plan.folder) as hidden:
        with (
            (hidden / "removed.jsonl").open("w", encoding="utf-8") as removed,
            tqdm(unit=" rows", desc=stage.title, disable=not sys.stderr.isatty()) as bar,
        ):
            for path in plan.inputs:
                schema = unified([*(stage.read_schema(first) for first in before), schemas[path]])
                with RowWriter(hidden / outputs[path].name, schema) as writer:
                    for first in before:
                        for number, row in stage.read(first):
                            if isinstance(row, BadRow):
                                raise SourceError(f"{first} row {number}: {row}")
                            writer.write(row)
                    for chunk in batched(stage.read(path), plan.chunk_rows):
                        for row in _worked(work, plan.strict, path, chunk, tally, removed):
                            writer.write(row)
                        bar.update(len(chunk))
                written[outputs[path].name] = writer.rows
        report = {
            "title": stage.title,
            "settings": dict(plan.settings),
            "inputs": [path.name for path in (*before, *plan.inputs)],
            "outputs": written,
            "rules": {BAD: "no row: unreadable, or a column is missing, empty or of the wrong type", **stage.rules},
            **tally.described(),
        }
        write_json(hidden / "report.json", report)
        write_text(hidden / "report.md", markdown(report))
    return report, list(outputs.values())


def _worked(
    work: Work, strict: bool, path: Path, chunk: Sequence[tuple[int, Row | BadRow]], tally: Tally, removed: TextIO
) -> Iterator[Row]:
    """The rows that come of a chunk, in its order; the others are written down.

    Raises:
        SourceError: a bad row, with ``strict``.
    """
    outcomes = iter(work([row for _, row in chunk if not isinstance(row, BadRow)]))
    for number, row in chunk:
        if isinstance(row, BadRow):
            if strict:
                raise SourceError(f"{path} row {number}: {row}")
            outcome: Outcome = Removal(BAD, str(row))
            split, source, shown = "-", path.name, {}
        else:
            outcome = next(outcomes)
            split, source = str(row["extra_info"]["split"]), str(row["data_source"])
            shown = {"problem": problem_of(row), "answer": str(row["reward_model"]["ground_truth"] or "")}
        tally.read[split, source] += 1
        if isinstance(outcome, Removal):
            removed.write(tally.remove(removal_record(split, source, outcome, path.name, number, shown)))
        else:
            yield from outcome


def stage_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every stage over files of rows."""
    top = parser_of(program, description)
    top.add_argument("--input", nargs="+", type=Path, required=True, metavar="FILE", help="rows: parquet or JSON Lines")
    top.add_argument("--output-dir", type=Path, required=True, help="gets a parquet file for each input, and reports")
    top.add_argument("--strict", action="store_true", help="stop at the first bad row")
    return top


def finished(
    top: argparse.ArgumentParser, run: Callable[[argparse.Namespace], Made], words: Sequence[str] | None
) -> int:
    """Run the command of a stage with these words: its exit code, 1 if no row is left."""
    options, program = top.parse_args(words), top.prog.rpartition(".")[2]

    def judged(report: Mapping[str, Any], _: list[Path]) -> int:
        if any(report["outputs"].values()):
            return 0
        print(f"{program}: nothing is left; report.md says why", file=sys.stderr)
        return 1

    return finish(program, lambda: run(options), judged)
