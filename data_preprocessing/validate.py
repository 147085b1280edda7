# SPDX-License-Identifier: Apache-2.0
"""Checks parquet files of RL rows before a run does.

    prime-ext data validate data/math/train.parquet data/math/test.parquet
    prime-ext data validate train.parquet --tokenizer MODEL --max-prompt-length 1024

Looks for verl's schema, rows with the same source, split and index, the same prompt with different
answers, gold answers that the verifier of their source cannot grade or does not grade as correct,
and, with a tokenizer, prompts that are too long in its chat template. Rows of an environment, which
no verifier judges, need its name and a seed. Several files are checked together. Prints a table per
source and the first rows with faults. Exits with 0 if nothing is wrong, 1 if something is, 2 and
one line if a file or tokenizer cannot be read.
"""

import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prime_ext.config.modules import add_modules_argument, import_modules
from prime_ext.environments.names import DATA_SOURCE, read_name
from prime_ext.tasks.rl_rows import (
    MATH_SCHEMA,
    PublishedRow,
    count_tokens,
    find_idle_verifiers,
    find_row_faults,
    load_tokenizer,
)
from prime_ext.utils.arguments import COUNT, build_parser
from prime_ext.utils.report_page import format_markdown_table
from prime_ext.utils.rows import SourceError, read_rows
from prime_ext.verifiers.sources import BUILT_IN, TASKS, UnknownSource, find_source, register_source

from .command import program
from .grading import find_gold_fault
from .stages import show_progress

# Different faults that are listed at most.
MAX_LISTED = 20
# Split and index do not identify rows of Eurus-2-RL-Data (this split and index 0 in all) and of
# DAPO-Math-17k (no split, repeated rows).
NO_SPLIT = "dummy"


COLUMNS = ("data_source", "prompt", "ability", "reward_model", "extra_info")


def read_parquet_schema(path: Path) -> pa.Schema:
    """Return the schema of a parquet file. Raises SourceError: it is unreadable or not verl's."""
    try:
        schema = pq.read_schema(path).remove_metadata()
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    missing = [name for name in COLUMNS if name not in schema.names]
    if missing:
        raise SourceError(f"{path} has not the schema of verl: no column {', '.join(missing)}")
    try:
        # The content of extra_info is checked row by row.
        schemas = [
            pa.schema([of.field(name) for name in COLUMNS[:-1]]) for of in (schema, MATH_SCHEMA)
        ]
        unify(schemas)
    except SourceError as error:
        raise SourceError(f"{path} has not the schema of verl: {error}") from error
    return schema


def unify(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the schema that rows of all of these fit. Raises SourceError: there is none."""
    try:
        return pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise SourceError(f"columns of different types: {str(error).splitlines()[0]}") from error


@dataclass
class SourceCount:
    """Counts of a data source: all rows, rows with a fault, and repeated rows.

    A repeated row has the prompt and answer of an earlier one, which is not a fault. ``lengths``
    (their sum) and ``longest`` are of the prompts, in tokens or else characters.
    """

    rows: int = 0
    bad: int = 0
    repeated: int = 0
    lengths: int = 0
    longest: int = 0


class Validator:
    """Checks row after row; remembers 64 bits of each name and prompt.

    ``listed`` has the first different faults, where each was met first and in how many rows;
    ``kinds`` counts them.
    """

    def __init__(self, tokenizer: Any = None, max_prompt_length: int | None = None) -> None:
        self.sources: dict[str, SourceCount] = defaultdict(SourceCount)
        self.kinds: Counter[str] = Counter()
        self.listed: dict[str, tuple[str, int]] = {}
        self._tokenizer = tokenizer
        self._limit = max_prompt_length
        self._names: set[int] = set()
        self._golds: dict[int, int] = {}

    async def check(self, files: Sequence[Path]) -> None:
        """Check all rows of the files. Raises SourceError: one cannot be read."""
        for path in files:
            read_parquet_schema(path)
            number = 0
            for number, row in enumerate(show_progress(read_rows(path), path.name), start=1):
                await self._check(row, f"{path.name} row {number}")
            if number == 0:
                raise SourceError(f"{path} has no rows")

    async def _check(self, row: Mapping[str, Any], location: str) -> None:
        count = self.sources[row["data_source"] or "(none)"]
        faults = [
            ("schema", fault) for fault in find_row_faults(row, PublishedRow)
        ] or await self._find_deeper_faults(row, count)
        length = self._measure_length(row["prompt"])
        if self._limit is not None and length > self._limit:
            faults.append(("too long", f"the prompt has {length} tokens, more than {self._limit}"))
        count.rows += 1
        count.lengths += length
        count.longest = max(count.longest, length)
        if faults:
            count.bad += 1
            self.kinds.update(kind for kind, _ in faults)
            text = "; ".join(fault for _, fault in faults)
            if text in self.listed or len(self.listed) < MAX_LISTED:
                first, met = self.listed.get(text, (location, 0))
                self.listed[text] = (first, met + 1)

    async def _find_deeper_faults(
        self, row: Mapping[str, Any], count: SourceCount
    ) -> list[tuple[str, str]]:
        faults = []
        extra = row["extra_info"]
        gold = row["reward_model"]["ground_truth"]
        name = f"{row['data_source']} {extra.get('split')} {extra['index']}"
        if extra.get("split") not in (None, NO_SPLIT):
            if hash(name) in self._names:
                faults.append(("repeated id", f"{name} was there before"))
            self._names.add(hash(name))
        prompt = hash(json.dumps([row["data_source"], row["prompt"]]))
        if prompt not in self._golds:
            self._golds[prompt] = hash(gold)
        elif self._golds[prompt] == hash(gold):
            count.repeated += 1
        else:
            faults.append(("contradiction", "the same prompt was there before with another answer"))
        if row["data_source"].startswith(DATA_SOURCE):
            fault = find_environment_fault(row["data_source"], gold, extra)
            return faults if fault is None else [*faults, ("environment", fault)]
        fault = await find_gold_fault(row["data_source"], gold, extra)
        return faults if fault is None else [*faults, ("gold answer", fault)]

    def _measure_length(self, prompt: Sequence[Mapping[str, str]] | None) -> int:
        messages = [message for message in prompt or () if message]
        if self._tokenizer is None:
            return sum(len(message["content"] or "") for message in messages)
        if not messages:
            return 0
        return count_tokens(self._tokenizer, messages)


def find_environment_fault(data_source: str, gold: Any, extra: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a row of an environment, which is not started; None if nothing."""
    name = data_source.removeprefix(DATA_SOURCE)
    environments = {
        "reward_model.ground_truth": gold,
        "extra_info.environment": extra.get("environment"),
    }
    for key, value in environments.items():
        if value != name:
            return f"{key} must be {name!r}, which {data_source} names, got {value!r}"
    if not isinstance(extra.get("seed"), int):
        return f"extra_info.seed must be a whole number, got {extra.get('seed')!r}"
    try:
        read_name(name)
    except SourceError as error:
        return str(error)
    return None


def find_idle_patterns(patterns: Sequence[str], data_sources: Iterable[str]) -> list[str]:
    """Return the patterns by which none of the data sources gets its verifier."""
    deciding = set()
    for name in data_sources:
        with suppress(UnknownSource):
            deciding.add(find_source(name).pattern)
    return [pattern for pattern in patterns if pattern not in deciding]


@program("validate")
def main(words: Sequence[str] | None = None) -> int:
    top = build_parser("data validate", __doc__)
    top.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="parquet files that are used together"
    )
    top.add_argument("--tokenizer", help="folder or hub id; without it lengths are in characters")
    top.add_argument("--max-prompt-length", type=COUNT, help="tokens that a prompt may have")
    about = "tasks of further data sources, as in training"
    top.add_argument("--sources", nargs="+", default=[], metavar="PATTERN=TASK", help=about)
    add_modules_argument(top)
    options = top.parse_args(words)
    if options.max_prompt_length is not None and options.tokenizer is None:
        top.error("--max-prompt-length needs --tokenizer")
    import_modules(options.modules)
    patterns = []
    for word in options.sources:
        pattern, _, task = word.partition("=")
        register_source(pattern, task)
        patterns.append(pattern)
    tokenizer = None if options.tokenizer is None else load_tokenizer(options.tokenizer)
    validator = Validator(tokenizer, options.max_prompt_length)
    asyncio.run(validator.check(options.files))
    unit = "characters" if tokenizer is None else "tokens"
    table = []
    for name, count in sorted(validator.sources.items()):
        numbers = (
            count.rows,
            count.bad,
            count.repeated,
            round(count.lengths / count.rows),
            count.longest,
        )
        table.append([name, *(f"{number:,}" for number in numbers)])
    header = ["data source", "rows", "with faults", "repeated", f"mean {unit}", f"longest ({unit})"]
    print(format_markdown_table(header, table, escape=False))
    if any(name.startswith(DATA_SOURCE) for name in validator.sources):
        print(f"rows of {DATA_SOURCE}NAME have no verifier: their environment judges")
    for text, (location, met) in validator.listed.items():
        print(f"{location}{f' and {met - 1:,} more' if met > 1 else ''}: {text}")
    unused = find_idle_verifiers(validator.sources) if options.modules else []
    idle = unused + [
        f"--sources {pattern}=... decides for no data source of the rows"
        for pattern in find_idle_patterns(patterns, validator.sources)
    ]
    for line in idle:
        print(line)
    bad = sum(count.bad for count in validator.sources.values())
    if not bad:
        print("no row has a fault" if idle else "nothing is wrong")
        # Modules may have verifiers of other data sets too, but not only such.
        return 0 if len(unused) == len(idle) < len(TASKS.keys() - BUILT_IN) or not idle else 1
    kinds = ", ".join(f"{kind} {n}" for kind, n in validator.kinds.most_common())
    shown = sum(met for _, met in validator.listed.values())
    print(f"{bad} rows with faults ({kinds}); {shown} of them are listed above")
    if any("no verifier" in text for text in validator.listed):
        print(
            "a data source is given a verifier by --sources PATTERN=TASK, one of your own by"
            " --modules MODULE"
        )
    return 1


if __name__ == "__main__":
    sys.exit(main())
