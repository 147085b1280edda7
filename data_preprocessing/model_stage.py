# SPDX-License-Identifier: Apache-2.0
"""Stages over files of RL rows, which write rows and report those that they remove.

Kept rows go to parquet files; removed rows are counted, listed and shown. An interrupted run leaves
no output. Stages that query a language model hold a dialogue about every row.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from prime_ext.generate.backend import Sampling
from prime_ext.generate.open import add_backend_arguments, backend_from_arguments
from prime_ext.tasks.action_prompt import SUFFIXES
from prime_ext.tasks.rl_rows import PublishedRow, find_row_faults, write_rows
from prime_ext.utils.arguments import (
    add_output_argument,
    add_sampling_arguments,
    add_seed_argument,
    build_parser,
)
from prime_ext.utils.rows import BadRow, SourceError, make_batches
from prime_ext.utils.run_store import LineFile

from .command import fill_folder, print_sources
from .dialogues import FIELDS, Dialogue, Interviewer, Unanswered
from .pipeline_report import BAD, Tally
from .problem_sources import parse_rows
from .stages import Removal, show_progress
from .validate import read_parquet_schema, unify

Row = dict[str, Any]
Outcome = list[Row] | Removal
Work = Callable[[Sequence[Row]], Sequence[Outcome]]
# Rows whose dialogues run together.
CHUNK_ROWS = 500
MODEL_RULES = {
    "refused": (
        "the model cannot be asked: the prompt is too long for its context, or it takes no chat"
    ),
    "unanswered": "the model gave no answer; only with --on-failure remove",
}


# ---- rows ----


def check_row(raw: Mapping[str, Any], *position: object) -> Row:
    """Return a row of verl's schema. Raises BadRow: it has faults. ``position`` is not used."""
    faults = find_row_faults(raw, PublishedRow)
    if faults:
        raise BadRow("; ".join(faults))
    return dict(raw)


def read_rl_rows(path: Path) -> Iterator[tuple[int, Row | BadRow]]:
    """Yield the number of each row of verl's schema with the row, or with its faults."""
    return parse_rows(path, check_row)


def read_schema(path: Path) -> pa.Schema:
    """Return the schema of all rows of a file. Raises SourceError: unreadable, or none fits."""
    if path.suffix == ".parquet":
        return read_parquet_schema(path)
    try:
        tables = (
            pa.Table.from_pylist([row])
            for _, row in read_rl_rows(path)
            if not isinstance(row, BadRow)
        )
        schemas = list(dict.fromkeys(table.schema for table in tables))
        if schemas:
            return unify(schemas)
    except (SourceError, pa.ArrowException) as error:
        raise SourceError(
            f"{path}: its rows do not fit one schema: {str(error).splitlines()[0]}"
        ) from error
    raise SourceError(f"{path} has no RL row")


def add_to_extra(path: Path, fields: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return the schema of a file with fields added to ``extra_info``, or replaced there."""
    schema = read_schema(path)
    column = schema.get_field_index("extra_info")
    known = schema.field(column).type
    kept = [known.field(i) for i in range(known.num_fields) if known.field(i).name not in fields]
    return schema.set(
        column,
        pa.field("extra_info", pa.struct([*kept, *(pa.field(*item) for item in fields.items())])),
    )


def extract_problem(row: Mapping[str, Any]) -> str:
    """Return a row's question without the suffix about the form of the answer."""
    return str(row["prompt"][-1]["content"]).removesuffix(SUFFIXES.get(str(row["ability"]), ""))


# ---- stages ----


def run_stage(options: argparse.Namespace, work: Work, **stage: Any) -> int:
    """Work on all rows of ``options.input`` and write. Returns the exit code, 1 if no row is left.

    ``work`` returns for every row of a chunk its output rows, or why it is removed; ``stage`` is
    the rest of :func:`_write_stage`.
    """
    outputs = name_outputs(options.input, options.output)
    with fill_folder(options.output) as hidden:
        report = _write_stage(outputs, hidden, work, **stage)
    return _conclude(options.program, report)


def _write_stage(
    outputs: Mapping[Path, Path],
    hidden: Path,
    work: Work,
    *,
    title: str,
    rules: Mapping[str, str],
    settings: Mapping[str, Any],
    schema: Callable[[Path], pa.Schema] = read_schema,
    read: Callable[[Path], Iterable[tuple[int, Row | BadRow]]] = read_rl_rows,
) -> dict[str, Any]:
    """Write the outputs, by input, into the folder ``hidden``, and the report, which is returned.

    Args:
        outputs: of :func:`name_outputs`.
        hidden: the folder.
        work: see :func:`run_stage`.
        title, rules, settings: of the report; the rules in its order.
        schema: returns the schema of the output of a file.
        read: returns the numbers and rows of a file.
    """
    tally = Tally([title])
    written = {}
    for path, output in outputs.items():
        chunks = make_batches(show_progress(read(path), title), CHUNK_ROWS)
        rows = (row for chunk in chunks for row in _work_on_chunk(work, path, chunk, tally, title))
        written[output.name] = write_rows(hidden / output.name, schema(path), rows)
    bad = "no row: unreadable, or a column is missing, empty or of the wrong type"
    report = {
        "title": title,
        "settings": dict(settings),
        "inputs": [path.name for path in outputs],
        "outputs": written,
        **tally.describe({BAD: bad, **rules}),
    }
    tally.write(hidden, report)
    return report


def _conclude(program: str, report: Mapping[str, Any]) -> int:
    """Print what became of the rows; return the exit code."""
    print_sources(report)
    if any(report["outputs"].values()):
        return 0
    print(f"{program}: nothing is left; report.md says why", file=sys.stderr)
    return 1


def name_outputs(inputs: Sequence[Path], folder: Path) -> dict[Path, Path]:
    """Return the output of each input, which has the input's name.

    Raises SourceError: inputs share a name, are missing, or would be replaced.
    """
    outputs = {path: folder / f"{path.name.split('.')[0]}.parquet" for path in inputs}
    if len(set(outputs.values())) < len(inputs):
        raise SourceError(
            "the input files must have different names, because the outputs are called like them"
        )
    for path in inputs:
        if not path.is_file():
            raise SourceError(f"{path} does not exist or is not a file")
    read = {path.resolve() for path in inputs}
    for path in outputs.values():
        if path.resolve() in read:
            raise SourceError(
                f"{path} is an input and would be replaced; give another --output-dir"
            )
    return outputs


def _work_on_chunk(
    work: Work, path: Path, chunk: Sequence[tuple[int, Row | BadRow]], tally: Tally, title: str
) -> Iterator[Row]:
    """Yield the output rows of a chunk, in order, and count the others."""
    outcomes = iter(work([row for _, row in chunk if not isinstance(row, BadRow)]))
    for number, row in chunk:
        if isinstance(row, BadRow):
            outcome: Outcome = Removal(BAD, str(row))
            split = "-"
            source = path.name
            shown = {}
        else:
            outcome = next(outcomes)
            split = str(row["extra_info"].get("split") or "train")
            source = str(row["data_source"])
            shown = {
                "problem": extract_problem(row),
                "answer": str(row["reward_model"]["ground_truth"] or ""),
            }
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
) -> int:
    """Run a stage (see :func:`run_stage`) that holds a dialogue with a model about every row.

    ``dialogue`` gets the row and the model's name. Raises SourceError: questions got no answer and
    ``--on-failure`` is stop.
    """
    how = {name: getattr(options, name) for name in ("temperature", "top_p", "max_new_tokens")}
    # Find mistakes in the files before a model is loaded.
    outputs = name_outputs(options.input, options.output)
    for path in options.input:
        stage.get("schema", read_schema)(path)
    answers = options.answers or options.output / "answers.jsonl"
    with (
        fill_folder(options.output, answers.parent) as hidden,
        LineFile(answers, itemgetter("key"), FIELDS) as store,
        closing(backend_from_arguments(options)) as backend,
    ):
        model = backend.description()
        interviewer = Interviewer(backend, store, Sampling(**how), options.seed)

        def work(rows: Sequence[Row]) -> list[Outcome]:
            results = interviewer.results([dialogue(row, str(model["model"])) for row in rows])
            failed = [
                result
                for result in results
                if isinstance(result, Unanswered) and not result.refused
            ]
            if failed and options.on_failure == "stop":
                raise SourceError(
                    f"{len(failed)} of {len(results)} rows got no answer ({failed[0].detail});"
                    " finished answers are kept, the same command asks for the rest; --on-failure"
                    " remove goes on without these rows"
                )
            return [
                (
                    Removal("refused" if result.refused else "unanswered", result.detail)
                    if isinstance(result, Unanswered)
                    else result
                )
                for result in results
            ]

        settings = {"model": model, **settings, **how, "seed": options.seed}
        rules = {**rules, **MODEL_RULES}
        report = _write_stage(outputs, hidden, work, rules=rules, settings=settings, **stage)
    code = _conclude(options.program, report)
    print(
        f"{interviewer.requested} answers asked for, {interviewer.reused} found in {store.path}",
        file=sys.stderr,
    )
    return code


def build_stage_parser(
    program: str, description: str | None, sampling: Sampling | None = None
) -> argparse.ArgumentParser:
    """Return a parser of stage options and, with defaults in ``sampling``, of a model's."""
    top = build_parser(f"data {program.replace('_', '-')}", description)
    top.set_defaults(program=program)
    top.epilog = (
        "Exits with 1 if nothing is left, with 2 and one line when nothing can be written. See"
        " docs/reference/data.md."
    )
    if sampling is not None:
        top.epilog = (
            f"Interrupted or killed, the same command goes on and asks nothing twice. {top.epilog}"
        )
    top.add_argument(
        "--input",
        nargs="+",
        type=Path,
        required=True,
        metavar="FILE",
        help="rows: parquet or JSON Lines",
    )
    add_output_argument(top, "gets a parquet file for each input, and reports")
    if sampling is None:
        return top
    add_backend_arguments(top)
    how = top.add_argument_group("answers")
    how.add_argument(
        "--answers",
        type=Path,
        help="file of finished answers (default: answers.jsonl in --output-dir)",
    )
    how.add_argument(
        "--on-failure",
        choices=("stop", "remove"),
        default="stop",
        help=(
            "questions without an answer after all retries: stop, and the same command asks again"
            " (default); or remove these rows"
        ),
    )
    defaults = (sampling.temperature, sampling.top_p, sampling.max_new_tokens)
    add_sampling_arguments(how, defaults)
    add_seed_argument(how, "all answers", "--sampling-seed")
    return top
