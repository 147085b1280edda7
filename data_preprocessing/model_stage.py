# SPDX-License-Identifier: Apache-2.0
"""Stages over files of RL rows: what they keep goes to parquet files, what they remove is counted, listed and shown.

Rows are read a chunk at a time. The outputs are moved to their places when everything is done; an interrupted run
leaves none of them. Stages that ask a language model lead a dialogue about every row.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_preprocessing.command import Made, build_parser, check_positive, finish, unfinished
from data_preprocessing.dialogues import Dialogue, Interviewer, Unanswered, open_answers
from data_preprocessing.problems import batched, parse_rows
from data_preprocessing.report import BAD, Tally, markdown
from data_preprocessing.stages import Removal, show_progress
from data_preprocessing.validate import read_parquet_schema, row_faults, unify
from prime_ext.generate.backend import Sampling
from prime_ext.generate.open import add_backend_arguments, backend_from_arguments
from prime_ext.tasks.action_prompt import SUFFIXES
from prime_ext.tasks.rl_rows import RowWriter
from prime_ext.utils.files import write_json, write_text
from prime_ext.utils.rows import BadRow, SourceError

Row = dict[str, Any]
Outcome = list[Row] | Removal
Work = Callable[[Sequence[Row]], Sequence[Outcome]]
BATCH = 1_000
MODEL_RULES = {
    "refused": "the model cannot be asked: the prompt is too long for its context, or it takes no chat",
    "unanswered": "the model gave no answer; only with --on-failure remove",
}


# ---- rows ----


def check_row(raw: Mapping[str, Any], *place: object) -> Row:
    """Return a row of verl's schema. Raises BadRow: it has faults. Its place is not used."""
    faults = row_faults(raw)
    if faults:
        raise BadRow("; ".join(faults))
    return dict(raw)


def read_schema(path: Path) -> pa.Schema:
    """Return the schema of a file of RL rows; that of JSON Lines is what all of its rows need.

    Raises:
        SourceError: the file cannot be read, or its rows have no common schema.
    """
    if path.suffix == ".parquet":
        return read_parquet_schema(path)
    schemas: list[pa.Schema] = []
    rows = (row for _, row in parse_rows(path, check_row) if not isinstance(row, BadRow))
    try:
        for batch in batched(rows, BATCH):
            schemas = [unify([*schemas, pa.Table.from_pylist(batch).schema])]
    except (SourceError, pa.ArrowException) as error:
        raise SourceError(f"{path}: its rows do not fit one schema: {str(error).splitlines()[0]}") from error
    if not schemas:
        raise SourceError(f"{path} has no RL row")
    return schemas[0]


def add_to_extra(path: Path, fields: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return the schema of a file with further fields in ``extra_info``; fields of these names are replaced."""
    schema = read_schema(path)
    place = schema.get_field_index("extra_info")
    known = schema.field(place).type
    kept = [known.field(i) for i in range(known.num_fields) if known.field(i).name not in fields]
    return schema.set(place, pa.field("extra_info", pa.struct([*kept, *(pa.field(*item) for item in fields.items())])))


def problem_of(row: Mapping[str, Any]) -> str:
    """Return what the user of a row asks, without the suffix that says how the answer is written."""
    return str(row["prompt"][-1]["content"]).removesuffix(SUFFIXES.get(str(row["ability"]), ""))


# ---- stages ----


def run_stage(
    options: argparse.Namespace,
    work: Work,
    *,
    title: str,
    rules: Mapping[str, str],
    settings: Mapping[str, Any],
    schema: Callable[[Path], pa.Schema] = read_schema,
    parse: Callable[[Mapping[str, Any], Path, int], Row] = check_row,
    first: Path | None = None,
    chunk_rows: int = 500,
) -> Made:
    """Work on all rows of ``options.input`` and write. Returns the report and the parquet files.

    Args:
        options: of :func:`stage_parser`.
        work: returns for every row of a chunk the rows that come of it, or why it is removed.
        title, rules, settings: of the report; the rules in its order.
        schema: returns the schema of the output of a file.
        parse: turns what a file has at a number into a row.
        first: a file whose rows go, as they are, before those of the single input; the output has its name.
        chunk_rows: rows of a chunk.
    """
    outputs = name_outputs(options.input, options.output_dir, first)
    before = [] if first is None else [first]
    written = {}
    with unfinished(options.output_dir) as hidden:
        tally = Tally([title])
        for path in options.input:
            output_schema = unify([schema(one) for one in (*before, path)])
            with RowWriter(hidden / outputs[path].name, output_schema) as writer:
                for number, row in (numbered for one in before for numbered in parse_rows(one, parse)):
                    if isinstance(row, BadRow):
                        raise SourceError(f"{first} row {number}: {row}")
                    writer.write(row)
                for chunk in batched(show_progress(parse_rows(path, parse), title), chunk_rows):
                    for row in _work_on_chunk(work, options.strict, path, chunk, tally, title):
                        writer.write(row)
            written[outputs[path].name] = writer.rows
        tally.write_removed(hidden / "removed.jsonl")
        rules = {BAD: "no row: unreadable, or a column is missing, empty or of the wrong type", **rules}
        report = {
            "title": title,
            "settings": dict(settings),
            "inputs": [path.name for path in (*before, *options.input)],
            "outputs": written,
            **tally.describe(rules),
        }
        write_json(hidden / "report.json", report)
        write_text(hidden / "report.md", markdown(report))
    return report, list(outputs.values())


def name_outputs(inputs: Sequence[Path], folder: Path, first: Path | None) -> dict[Path, Path]:
    """Return the output of each input, which has its name. Raises SourceError: it would replace a file."""
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


def _work_on_chunk(
    work: Work, strict: bool, path: Path, chunk: Sequence[tuple[int, Row | BadRow]], tally: Tally, title: str
) -> Iterator[Row]:
    """Yield the rows that come of a chunk, in order, and count the others. Raises SourceError: strict, a bad row."""
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
            tally.remove(title, outcome, split, source, path.name, number, shown)
        else:
            yield from outcome


def run_model_stage(
    options: argparse.Namespace,
    dialogue: Callable[[Row, str], Dialogue[Outcome]],
    *,
    rules: Mapping[str, str],
    settings: Mapping[str, Any],
    **stage: Any,
) -> Made:
    """Open the model and the answers and run a stage with the dialogue about a row and the model's name.

    ``rules``, ``settings`` and ``stage`` are those of :func:`run_stage`.

    Raises:
        SourceError: an option is out of its range, or questions got no answer and ``--on-failure`` is ``stop``.
    """
    if options.temperature < 0 or not 0 < options.top_p <= 1:
        got = f"{options.temperature} and {options.top_p}"
        raise SourceError(f"--temperature must be at least 0 and --top-p above 0 and at most 1, got {got}")
    check_positive(options, "max_new_tokens", "chunk_rows")
    how = {name: getattr(options, name) for name in ("temperature", "top_p", "max_new_tokens")}
    # Mistakes in the files before a model is loaded.
    name_outputs(options.input, options.output_dir, stage.get("first"))
    for path in options.input:
        stage.get("schema", read_schema)(path)
    with (
        open_answers(options.answers or options.output_dir / "answers.jsonl") as store,
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

        settings = {"model": model, **settings, **how, "seed": options.sampling_seed}
        rules = {**rules, **MODEL_RULES}
        made = run_stage(options, work, rules=rules, settings=settings, chunk_rows=options.chunk_rows, **stage)
    print(f"{interviewer.asked} answers asked for, {interviewer.found} found in {store.path}", file=sys.stderr)
    return made


def stage_parser(program: str, description: str | None, sampling: Sampling | None = None) -> argparse.ArgumentParser:
    """Return a parser with the options of every stage; with ``sampling``, their defaults, those of a model too."""
    top = build_parser(program, description)
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
    how.add_argument("--answers", type=Path, help="file of finished answers (default: answers.jsonl in --output-dir)")
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


def run_command(
    top: argparse.ArgumentParser, run: Callable[[argparse.Namespace], Made], words: Sequence[str] | None
) -> int:
    """Run the command of a stage with these words. Returns its exit code, 1 if no row is left."""
    options, program = top.parse_args(words), top.prog.rpartition(".")[2]

    def judged(report: Mapping[str, Any], _: list[Path]) -> int:
        if any(report["outputs"].values()):
            return 0
        print(f"{program}: nothing is left; report.md says why", file=sys.stderr)
        return 1

    return finish(program, lambda: run(options), judged)
