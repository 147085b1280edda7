# SPDX-License-Identifier: Apache-2.0
"""Math problems in verl's RL schema, filtered and checked: GSM8K, MATH, NuminaMath-CoT, the quickstart's task.

    python -m data_preprocessing.rl_data --sources gsm8k math --data-dir DATA --output-dir data/math
    python -m data_preprocessing.rl_data --sources numina --input numina=my_set.jsonl --output-dir data/mine
    python -m data_preprocessing.rl_data --sources last_digit_chain --generated-rows train=8192 --output-dir data/chain

Without --data-dir and --input the rows come from the Hugging Face hub. Writes ``train.parquet``, ``validation.parquet``
and ``test.parquet``, as far as they have rows, ``removed.jsonl`` (every row that is not in them, and why),
``choice.jsonl`` (multiple choice, for ``data_preprocessing.rewrite_choice``), ``report.json`` and ``report.md``: all of
them or none. Interrupted, the same command goes on where it was; the result depends neither on that nor on --workers.
Afterwards the files are validated as by ``data_preprocessing.validate``.

Exits with 1 if the validation finds something, with 2 and one line when nothing can be written. See docs/data.md.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from data_preprocessing import validate
from data_preprocessing.command import finish
from data_preprocessing.input_files import InputFiles
from data_preprocessing.math_parts import Conversion
from data_preprocessing.math_rules import ALWAYS, RULES
from data_preprocessing.math_sources import SOURCES
from data_preprocessing.rl_outputs import write_outputs
from data_preprocessing.row_source import chunks, inputs_of
from data_preprocessing.stage_runner import Parts, run_parts
from data_preprocessing.tally import BAD, Tally
from prime_ext.tasks.action_prompt import SYSTEM_PROMPT
from prime_ext.tasks.rl_rows import MATH_SCHEMA, OUTPUTS, refuse_leftovers
from prime_ext.utils.machine import available_cores
from prime_ext.utils.rows import SourceError

# Parts of another version are not gone on with.
FORMAT = 2


def system_prompt(value: str) -> str:
    """The system message that --system-prompt asks for.

    Raises:
        SourceError: no such file, or no text in it.
    """
    if value == "actions":
        return SYSTEM_PROMPT
    if value == "none":
        return ""
    try:
        text = Path(value).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"--system-prompt must be actions, none or a text file, got {value}: {error}") from error
    if not text:
        raise SourceError(f"--system-prompt {value} is empty; none leaves the system message out")
    return text


def _tables(parts: Parts, summaries: Sequence[dict[str, Any]]) -> Iterator[tuple[str, pa.Table]]:
    for number, found in enumerate(summaries):
        if found["rows"]:
            yield found["split"], pq.read_table(parts.path(number, ".parquet"), schema=MATH_SCHEMA)


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[Path]]:
    """Convert, filter and write. Returns the report and the parquet files.

    Raises:
        SourceError: see its message.
    """
    stray = [name for name in options.input if name not in options.sources]
    if stray:
        raise SourceError(f"--input names {stray[0]}, which is not among --sources {' '.join(options.sources)}")
    if options.chunk_rows < 1 or options.workers < 1:
        raise SourceError("--chunk-rows and --workers must be at least 1")
    wanted = (options.data_dir, options.splits or (), options.generated_rows, options.seed)
    inputs = [given for name in options.sources for given in inputs_of(SOURCES[name], options.input.get(name), *wanted)]
    rules = tuple(name for name in RULES if name in (*options.rules, *ALWAYS))
    conversion = Conversion(rules, system_prompt(options.system_prompt), options.strict)
    # Before the work, not after it.
    refuse_leftovers(options.output_dir, {given.split for given in inputs})
    identity = {"format": FORMAT, "rules": rules, "system": conversion.system, "chunk_rows": options.chunk_rows}
    parts = Parts(options.output_dir / ".parts", identity | {"inputs": [given.identity() for given in inputs]})
    tally, summaries = Tally(), []
    with tqdm(unit=" rows", desc="rows", disable=not sys.stderr.isatty()) as bar:
        for _, summary in run_parts(chunks(inputs, options.chunk_rows), conversion, parts, options.workers):
            part = Tally.restored(summary)
            tally.add(part)
            bar.update(part.read.total())
            summaries.append({"split": summary["split"], "rows": summary["rows"]})
    if not any(found["rows"] for found in summaries):
        raise SourceError(_nothing(tally))
    report = {
        "settings": {"rules": list(rules), "system_prompt": options.system_prompt != "none", "seed": options.seed},
        "inputs": [f"{given.source.name} {given.split}: {given.name}" for given in inputs],
        "rules": {BAD: "no row of this source: unreadable, or a column is missing or empty, or its id is repeated"}
        | {name: RULES[name].meaning for name in rules},
        **tally.described(),
    }
    splits = [split for split in OUTPUTS if any(found["split"] == split and found["rows"] for found in summaries)]
    lines = {
        name: [parts.path(number, f".{name}.jsonl") for number in range(len(summaries))]
        for name in ("removed", "choice")
    }
    paths = write_outputs(_tables(parts, summaries), splits, lines, report, options.output_dir)
    parts.remove()
    return report, paths


def _nothing(tally: Tally) -> str:
    """Why no row is left."""
    if any(set(counts) != {BAD} for counts in tally.removed.values()):
        return "nothing is left: the rules removed all rows; --rules says which ones apply"
    row = next(iter(tally.samples.values()))[0]
    return f"nothing can be used: {row['file']} row {row['row']}: {row['evidence']}"


class _Rows(argparse.Action):
    """``split=number``, any number of times."""

    def __call__(self, parser, namespace, values, option_string=None):  # type: ignore[no-untyped-def]
        given = {}
        for value in values:
            split, _, number = value.partition("=")
            if split not in OUTPUTS or not number.isdecimal() or int(number) < 1:
                parser.error(f"--generated-rows {value}: must be SPLIT=NUMBER with {', '.join(OUTPUTS)}")
            given[split] = int(number)
        namespace.generated_rows = given


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m data_preprocessing.rl_data",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.set_defaults(input={})
    about = "; ".join(f"{name}: {source.title}" for name, source in SOURCES.items())
    top.add_argument("--sources", nargs="+", choices=list(SOURCES), required=True, help=about)
    top.add_argument(
        "--input", nargs="+", action=InputFiles, metavar="SOURCE[:SPLIT]=FILE", help="local files; repeatable"
    )
    local = ", ".join(path for source in SOURCES.values() for path in source.local.values())
    top.add_argument("--data-dir", type=Path, help=f"folder with {local}, as far as --sources needs them")
    top.add_argument("--output-dir", type=Path, required=True)
    top.add_argument("--splits", nargs="+", choices=OUTPUTS, help="default: all that there are")
    meanings = "; ".join(f"{name}: {rule.meaning}" for name, rule in RULES.items())
    top.add_argument(
        "--rules",
        nargs="*",
        choices=list(RULES),
        default=list(RULES),
        help=f"what is removed from the training split (default: all); {ALWAYS[0]} always is. {meanings}",
    )
    top.add_argument(
        "--system-prompt",
        default="actions",
        help="actions: the seven actions and the form of a response (default); none; or a text file",
    )
    top.add_argument(
        "--generated-rows", nargs="+", action=_Rows, metavar="SPLIT=NUMBER", help="problems of last_digit_chain"
    )
    top.add_argument("--seed", type=int, default=0, help="of generated problems (default: 0)")
    cores = available_cores()
    top.add_argument("--workers", type=int, default=cores, help=f"processes (default: one per core, {cores})")
    top.add_argument("--chunk-rows", type=int, default=5_000, help="rows of a part, the unit of resuming")
    top.add_argument("--strict", action="store_true", help="stop at the first bad row")
    return top


def main(words: Sequence[str] | None = None) -> int:
    options = parser().parse_args(words)
    options.sources = list(dict.fromkeys(options.sources))
    return finish("rl_data", lambda: run(options), lambda _, paths: validate.main([str(path) for path in paths]))


if __name__ == "__main__":
    sys.exit(main())
