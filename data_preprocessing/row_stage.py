# SPDX-License-Identifier: Apache-2.0
"""A stage over files of rows: what it keeps goes to parquet files, what it removes is counted, listed and shown.

Rows are read a chunk at a time. The outputs are written to a hidden folder and moved to their places when everything is
done; an interrupted run leaves none of them.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from tqdm import tqdm

from data_preprocessing.batches import batched
from data_preprocessing.funnel_report import markdown
from data_preprocessing.rl_input import Row, problem_of, rl_rows, rl_schema_of, unified
from data_preprocessing.stage import Removal
from data_preprocessing.tally import BAD, MAX_SHOWN, Tally
from prime_ext.tasks.rl_rows import RowWriter
from prime_ext.utils.files import write_json, write_text
from prime_ext.utils.rows import BadRow, SourceError

Outcome = list[Row] | Removal
Work = Callable[[Sequence[Row]], Sequence[Outcome]]
BAD_MEANING = "no row: unreadable, or a column is missing, empty or of the wrong type"


def rl_name(row: Row) -> tuple[str, str]:
    """Split and data source."""
    return str(row["extra_info"]["split"]), str(row["data_source"])


def rl_shown(row: Row) -> dict[str, str]:
    """What reports show of a row."""
    return {"problem": problem_of(row)[:MAX_SHOWN], "answer": str(row["reward_model"]["ground_truth"])[:MAX_SHOWN]}


@dataclass(frozen=True)
class RowStage:
    """What is done with rows.

    Attributes:
        title: of the report.
        rules: why rows are removed, in the order of the funnel.
        schema: of the outputs, from that of the inputs.
        read: the rows of a file with their numbers.
        read_schema: the schema of a file.
        name: split and data source of a row.
        shown: what the report shows of a row.
    """

    title: str
    rules: Mapping[str, str]
    schema: Callable[[pa.Schema], pa.Schema] = lambda schema: schema
    read: Callable[[Path], Iterator[tuple[int, Row | BadRow]]] = rl_rows
    read_schema: Callable[[Path], pa.Schema] = rl_schema_of
    name: Callable[[Row], tuple[str, str]] = rl_name
    shown: Callable[[Row], Mapping[str, str]] = rl_shown


@dataclass
class Plan:
    """Which files go where.

    Attributes:
        inputs: files of rows; each makes a parquet file of the same name.
        folder: of the outputs.
        chunk_rows: rows that are worked on together.
        strict: a bad row is an error.
        settings: for the report.
        first: rows that go, as they are, before those of the single input, and the name of the output then.
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
        if self.chunk_rows < 1:
            raise SourceError(f"--chunk-rows must be at least 1, got {self.chunk_rows}")
        if self.first is not None and len(self.inputs) != 1:
            raise SourceError(f"rows can be put after those of {self.first} only from one file, not {len(self.inputs)}")
        names = {path: f"{(self.first or path).name.split('.')[0]}.parquet" for path in self.inputs}
        if len(names) < len(self.inputs) or len(set(names.values())) < len(names):
            raise SourceError("the input files must have different names, because the outputs are called like them")
        found = {path: self.folder / name for path, name in names.items()}
        for path in found.values():
            if path.resolve() in [given.resolve() for given in (*self.inputs, *([self.first] if self.first else []))]:
                raise SourceError(f"{path} is an input and would be replaced; give another --output-dir")
        return found


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """A hidden folder; what lies in it moves to ``folder`` when the block ends without an error."""
    hidden = folder / ".unfinished"
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir(parents=True)
    try:
        yield hidden
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    for path in sorted(hidden.iterdir()):
        path.replace(folder / path.name)
    hidden.rmdir()


def run_stage(stage: RowStage, work: Work, plan: Plan) -> tuple[dict[str, Any], list[Path]]:
    """Work on all rows and write. Returns the report and the parquet files.

    Args:
        stage: what it is.
        work: for every row of a chunk the rows that come of it, or why it is removed.
        plan: the files.

    Raises:
        SourceError: see its message.
    """
    outputs = plan.outputs()
    schemas = {path: stage.schema(stage.read_schema(path)) for path in plan.inputs}
    tally, written = Tally(), {}
    with unfinished(plan.folder) as hidden, ExitStack() as stack:
        removed = stack.enter_context((hidden / "removed.jsonl").open("w", encoding="utf-8"))
        bar = stack.enter_context(tqdm(unit=" rows", desc=stage.title, disable=not sys.stderr.isatty()))
        for path in plan.inputs:
            schema = schemas[path]
            if plan.first is not None:
                schema = unified([stage.read_schema(plan.first), schema])
            with RowWriter(hidden / outputs[path].name, schema) as writer:
                for row in _first_rows(stage, plan):
                    writer.write(row)
                for chunk in batched(stage.read(path), plan.chunk_rows):
                    for row in _worked(stage, work, plan, path, chunk, tally, removed):
                        writer.write(row)
                    bar.update(len(chunk))
            written[outputs[path].name] = writer.rows
        report = {
            "title": stage.title,
            "settings": dict(plan.settings),
            "inputs": [path.name for path in ([plan.first] if plan.first else []) + list(plan.inputs)],
            "outputs": written,
            "rules": {BAD: BAD_MEANING, **stage.rules},
            **tally.described(),
        }
        write_json(hidden / "report.json", report)
        write_text(hidden / "report.md", markdown(report))
    return report, list(outputs.values())


def _first_rows(stage: RowStage, plan: Plan) -> Iterator[Row]:
    for number, row in stage.read(plan.first) if plan.first else ():
        if isinstance(row, BadRow):
            raise SourceError(f"{plan.first} row {number}: {row}")
        yield row


def _worked(
    stage: RowStage,
    work: Work,
    plan: Plan,
    path: Path,
    chunk: Sequence[tuple[int, Row | BadRow]],
    tally: Tally,
    removed: Any,
) -> Iterator[Row]:
    """The rows that come of a chunk, in its order; the others are written down.

    Raises:
        SourceError: a bad row, with ``strict``.
    """
    outcomes = iter(work([row for _, row in chunk if not isinstance(row, BadRow)]))
    for number, row in chunk:
        if isinstance(row, BadRow):
            if plan.strict:
                raise SourceError(f"{path} row {number}: {row}")
            outcome: Outcome = Removal(BAD, str(row))
            (split, source), shown = ("-", path.name), {}
        else:
            outcome = next(outcomes)
            (split, source), shown = stage.name(row), stage.shown(row)
        tally.read[split, source] += 1
        if isinstance(outcome, Removal):
            seen = outcome.evidence[:MAX_SHOWN].encode("utf-8", "replace").decode()
            place = {"file": path.name, "row": number, "evidence": seen}
            tally.remove(split, source, outcome.rule, {**place, **shown})
            line = {"split": split, "data_source": source, "rule": outcome.rule, **place}
            removed.write(json.dumps(line) + "\n")
        else:
            yield from outcome
