# SPDX-License-Identifier: Apache-2.0
"""A stage over files of rows: what it keeps goes to parquet files, what it removes is counted, listed and shown.

Rows are read a chunk at a time. The outputs are moved to their places when everything is done; an interrupted run
leaves none of them. Stages that ask a language model lead a dialogue about every row.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
from tqdm import tqdm

from data_preprocessing.command import Made, finish, parser_of, positive, unfinished
from data_preprocessing.dialogues import AnswerStore, Dialogue, Interviewer, Unanswered
from data_preprocessing.report import BAD, Tally, markdown, removal_record
from data_preprocessing.rl_input import Row, checked_row, problem_of, rl_schema_of, unified
from data_preprocessing.row_source import batched, parsed_rows
from data_preprocessing.stage import Removal
from prime_ext.generate.backend import Sampling
from prime_ext.generate.open import add_backend_arguments, backend_from_arguments
from prime_ext.tasks.rl_rows import RowWriter
from prime_ext.utils.files import write_json, write_text
from prime_ext.utils.rows import BadRow, SourceError

Outcome = list[Row] | Removal
Work = Callable[[Sequence[Row]], Sequence[Outcome]]
MODEL_RULES = {
    "refused": "the model cannot be asked: the prompt is too long for its context, or it takes no chat",
    "unanswered": "the model gave no answer; only with --on-failure remove",
}


@dataclass(frozen=True)
class RowStage:
    """What is done with rows.

    Attributes:
        title: of the report.
        rules: why rows are removed, in the order of the funnel.
        settings: for the report.
        schema: of the output of a file.
        parse: a row, from what stands in a file at a number.
        first: a file whose rows go, as they are, before those of the single input; the output has its name.
    """

    title: str
    rules: Mapping[str, str]
    settings: Mapping[str, Any]
    schema: Callable[[Path], pa.Schema] = rl_schema_of
    parse: Callable[[Mapping[str, Any], Path, int], Row] = checked_row
    first: Path | None = None


def outputs_of(inputs: Sequence[Path], folder: Path, first: Path | None) -> dict[Path, Path]:
    """The output of each input, which has its name; SourceError if an output would replace another or an input."""
    if first is not None and len(inputs) != 1:
        raise SourceError(f"rows can be put after those of {first} only from one file, not {len(inputs)}")
    found = {path: folder / f"{(first or path).name.split('.')[0]}.parquet" for path in inputs}
    if len(found) < len(inputs) or len(set(found.values())) < len(found):
        raise SourceError("the input files must have different names, because the outputs are called like them")
    read = {path.resolve() for path in (*inputs, first) if path is not None}
    for path in found.values():
        if path.resolve() in read:
            raise SourceError(f"{path} is an input and would be replaced; give another --output-dir")
    return found


def run_stage(options: argparse.Namespace, stage: RowStage, work: Work, chunk_rows: int = 500) -> Made:
    """Work on all rows and write. Returns the report and the parquet files.

    ``work`` says for every row of a chunk what rows come of it, or why it is removed.
    """
    outputs = outputs_of(options.input, options.output_dir, stage.first)
    schemas = {path: stage.schema(path) for path in options.input}
    before = [] if stage.first is None else [stage.first]
    tally, written = Tally(), {}
    with unfinished(options.output_dir) as hidden:
        with (
            (hidden / "removed.jsonl").open("w", encoding="utf-8") as removed,
            tqdm(unit=" rows", desc=stage.title, disable=not sys.stderr.isatty()) as bar,
        ):
            for path in options.input:
                schema = unified([*(stage.schema(first) for first in before), schemas[path]])
                with RowWriter(hidden / outputs[path].name, schema) as writer:
                    for first in before:
                        for number, row in parsed_rows(first, stage.parse):
                            if isinstance(row, BadRow):
                                raise SourceError(f"{first} row {number}: {row}")
                            writer.write(row)
                    for chunk in batched(parsed_rows(path, stage.parse), chunk_rows):
                        for row in _worked(work, options.strict, path, chunk, tally, removed):
                            writer.write(row)
                        bar.update(len(chunk))
                written[outputs[path].name] = writer.rows
        report = {
            "title": stage.title,
            "settings": dict(stage.settings),
            "inputs": [path.name for path in (*before, *options.input)],
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
    """The rows that come of a chunk, in its order; the others are written down. SourceError at a bad row if strict."""
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


def run_model_stage(
    options: argparse.Namespace, stage: RowStage, dialogue: Callable[[Row, str], Dialogue[Outcome]]
) -> Made:
    """Open the model and the store and run a stage with the dialogue about a row and the model's name.

    Raises:
        SourceError: an option is out of its range, or questions got no answer and ``--on-failure`` is ``stop``.
    """
    if options.temperature < 0 or not 0 < options.top_p <= 1:
        got = f"{options.temperature} and {options.top_p}"
        raise SourceError(f"--temperature must be at least 0 and --top-p above 0 and at most 1, got {got}")
    positive(options, "max_new_tokens", "chunk_rows")
    how = {name: getattr(options, name) for name in ("temperature", "top_p", "max_new_tokens")}
    # Mistakes in the files before a model is loaded.
    outputs_of(options.input, options.output_dir, stage.first)
    for path in options.input:
        stage.schema(path)
    with (
        AnswerStore(options.answers or options.output_dir / "answers.sqlite") as store,
        closing(backend_from_arguments(options)) as backend,
    ):
        model = backend.description()
        interviewer = Interviewer(backend, store, Sampling(**how), options.sampling_seed)

        def work(rows: Sequence[Row]) -> list[Outcome]:
            results = interviewer.results([dialogue(row, str(model["model"])) for row in rows])
            failed = [found for found in results if isinstance(found, Unanswered) and not found.refused]
            if failed and options.on_failure == "stop":
                raise SourceError(
                    f"{len(failed)} of {len(results)} rows got no answer ({failed[0].detail}); finished answers are "
                    "kept, the same command asks for the rest; --on-failure remove goes on without these rows"
                )
            return [
                Removal("refused" if found.refused else "unanswered", found.detail)
                if isinstance(found, Unanswered)
                else found
                for found in results
            ]

        settings = {"model": model, **stage.settings, **how, "seed": options.sampling_seed}
        stage = replace(stage, rules={**stage.rules, **MODEL_RULES}, settings=settings)
        made = run_stage(options, stage, work, options.chunk_rows)
    print(f"{interviewer.asked} answers asked for, {interviewer.found} found in {store.path}", file=sys.stderr)
    return made


def stage_parser(program: str, description: str | None, sampling: Sampling | None = None) -> argparse.ArgumentParser:
    """A parser with the options of every stage over files of rows; with ``sampling``, defaults, those of a model."""
    top = parser_of(program, description)
    top.epilog = (
        "Exits with 1 if nothing is left, with 2 and one line when nothing can be written. See docs/reference/data.md."
    )
    if sampling is not None:
        top.epilog = f"Interrupted or killed, the same command goes on and asks nothing twice. {top.epilog}"
    top.add_argument("--input", nargs="+", type=Path, required=True, metavar="FILE", help="rows: parquet or JSON Lines")
    top.add_argument("--output-dir", type=Path, required=True, help="gets a parquet file for each input, and reports")
    top.add_argument("--strict", action="store_true", help="stop at the first bad row")
    if sampling is None:
        return top
    add_backend_arguments(top)
    how = top.add_argument_group("answers")
    how.add_argument("--answers", type=Path, help="file of finished answers (default: answers.sqlite in --output-dir)")
    how.add_argument(
        "--on-failure",
        choices=("stop", "remove"),
        default="stop",
        help="questions without an answer after all retries: stop, and the same command asks again (default); or "
        "remove these rows",
    )
    how.add_argument("--temperature", type=float, default=sampling.temperature, help="default: %(default)s")
    how.add_argument("--top-p", type=float, default=sampling.top_p, help="default: %(default)s")
    how.add_argument("--max-new-tokens", type=int, default=sampling.max_new_tokens, help="default: %(default)s")
    how.add_argument("--sampling-seed", type=int, default=0, help="base of the seeds of all answers (default: 0)")
    how.add_argument("--chunk-rows", type=int, default=500, help="rows asked about at a time (default: 500)")
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
