# SPDX-License-Identifier: Apache-2.0
"""Checks parquet files of RL rows before a run does.

    python -m data_preprocessing.validate data/math/train.parquet data/math/test.parquet
    python -m data_preprocessing.validate train.parquet --tokenizer MODEL --max-prompt-length 1024

Looks for verl's schema, rows with the same source, split and index, the same prompt with different answers, gold
answers that the verifier of their source cannot grade or does not grade as correct, and, with a tokenizer, prompts that
are too long in its chat template. Several files are checked together. Prints a table per source and the first rows with
faults. Exits with 0 if nothing is wrong, 1 if something is, 2 and one line if a file or tokenizer cannot be read.
"""

import argparse
import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from data_preprocessing.row_checks import COLUMNS, digest, row_faults, row_name, schema_faults
from data_preprocessing.self_grading import GoldChecker
from prime_ext.utils.rows import SourceError
from prime_ext.verifiers.sources import UnknownSource, register_source

# Tests of programs are large.
BATCH = 256


@dataclass
class SourceCount:
    """The rows of a data source.

    Attributes:
        rows: all of them.
        bad: those with a fault.
        repeated: rows whose prompt, with the same answer, was there before; not a fault.
        lengths: sum of the prompts' lengths, in tokens or else characters.
        longest: length of the longest prompt.
    """

    rows: int = 0
    bad: int = 0
    repeated: int = 0
    lengths: int = 0
    longest: int = 0


@dataclass
class Findings:
    """What was found in all files; ``kinds`` counts faults by what they are, ``listed`` are the first of them."""

    sources: dict[str, SourceCount] = field(default_factory=lambda: defaultdict(SourceCount))
    kinds: Counter[str] = field(default_factory=Counter)
    listed: list[str] = field(default_factory=list)


class Validator:
    """Checks row after row; remembers 64 bits of each name and prompt.

    Args:
        tokenizer: with a chat template; None counts characters.
        max_prompt_length: in tokens; None for no limit.
        n_listed: how many faulty rows are listed.
    """

    def __init__(self, tokenizer: Any = None, max_prompt_length: int | None = None, n_listed: int = 20) -> None:
        self.findings = Findings()
        self._tokenizer = tokenizer
        self._limit = max_prompt_length
        self._n_listed = n_listed
        self._gold = GoldChecker()
        self._names: set[int] = set()
        self._golds: dict[int, int] = {}

    async def check(self, rows: Sequence[Mapping[str, Any]], file: str, first: int) -> None:
        """Check rows of a file, of which the first has the number ``first``."""
        lengths = self._lengths([row["prompt"] for row in rows])
        for number, (row, length) in enumerate(zip(rows, lengths, strict=True), start=first):
            faults = [("schema", fault) for fault in row_faults(row)]
            count = self.findings.sources[row["data_source"] or "(none)"]
            if not faults:
                faults = await self._deeper_faults(row, count)
            if self._limit is not None and length > self._limit:
                faults.append(("too long", f"the prompt has {length} tokens, more than {self._limit}"))
            count.rows += 1
            count.lengths += length
            count.longest = max(count.longest, length)
            if faults:
                count.bad += 1
                self.findings.kinds.update(kind for kind, _ in faults)
                if len(self.findings.listed) < self._n_listed:
                    self.findings.listed.append(f"{file} row {number}: {'; '.join(fault for _, fault in faults)}")

    async def _deeper_faults(self, row: Mapping[str, Any], count: SourceCount) -> list[tuple[str, str]]:
        faults = []
        name = row_name(row)
        if name is not None:
            if digest(name) in self._names:
                faults.append(("repeated id", f"{name} was there before"))
            self._names.add(digest(name))
        gold = row["reward_model"]["ground_truth"]
        prompt = digest([row["data_source"], row["prompt"]])
        if prompt not in self._golds:
            self._golds[prompt] = digest(gold)
        elif self._golds[prompt] == digest(gold):
            count.repeated += 1
        else:
            faults.append(("contradiction", "the same prompt was there before with another answer"))
        fault = await self._gold.fault(row["data_source"], gold, row["extra_info"])
        return faults if fault is None else [*faults, ("gold answer", fault)]

    def _lengths(self, prompts: Sequence[Sequence[Mapping[str, str]] | None]) -> list[int]:
        if self._tokenizer is None:
            return [sum(len(message["content"] or "") for message in prompt or () if message) for prompt in prompts]
        whole = [prompt if prompt and all(prompt) else None for prompt in prompts]
        texts = [
            ""
            if prompt is None
            else self._tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
            for prompt in whole
        ]
        return [len(ids) for ids in self._tokenizer(texts, add_special_tokens=False)["input_ids"]]


def batches(path: Path) -> Iterator[list[dict[str, Any]]]:
    """The rows of a file, some at a time.

    Raises:
        SourceError: it is no parquet file, or has not the columns of the schema.
    """
    if not path.is_file():
        raise SourceError(f"{path} does not exist" if not path.is_dir() else f"{path} is a folder, not a file")
    try:
        file = pq.ParquetFile(path)
        faults = schema_faults(file.schema_arrow)
        if faults:
            raise SourceError(f"{path} has not the schema of verl: {'; '.join(faults)}")
        if file.metadata.num_rows == 0:
            raise SourceError(f"{path} has no rows")
        for batch in file.iter_batches(batch_size=BATCH, columns=list(COLUMNS)):
            yield batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def load_tokenizer(path: str) -> Any:
    """A tokenizer with a chat template.

    Raises:
        SourceError: there is none at that place.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise SourceError(f"no tokenizer at {path}: {str(error).strip().splitlines()[0]}") from error
    if not tokenizer.chat_template:
        raise SourceError(f"the tokenizer at {path} has no chat template")
    return tokenizer


def table(findings: Findings, unit: str) -> str:
    """A line per source."""
    rows = [("data source", "rows", "with faults", "repeated", f"mean {unit}", f"longest ({unit})")]
    for name, count in sorted(findings.sources.items()):
        mean = f"{count.lengths / count.rows:.0f}"
        rows.append((name, f"{count.rows:,}", f"{count.bad:,}", f"{count.repeated:,}", mean, f"{count.longest:,}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def validate(files: Sequence[Path], validator: Validator) -> Findings:
    """Check all rows of the files.

    Raises:
        SourceError: see :func:`batches`.
    """

    async def check() -> None:
        for path in files:
            first = 1
            with tqdm(unit=" rows", desc=path.name, disable=not sys.stderr.isatty()) as bar:
                for rows in batches(path):
                    await validator.check(rows, path.name, first)
                    first += len(rows)
                    bar.update(len(rows))

    asyncio.run(check())
    return validator.findings


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m data_preprocessing.validate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("files", nargs="+", type=Path, metavar="FILE", help="parquet files that are used together")
    top.add_argument("--tokenizer", help="folder or hub id; without it lengths are in characters")
    top.add_argument("--max-prompt-length", type=int, help="tokens that a prompt may have")
    top.add_argument(
        "--sources", nargs="+", default=[], metavar="PATTERN=TASK", help="tasks of further data sources, as in training"
    )
    top.add_argument("--list", type=int, default=20, metavar="N", help="faulty rows to list (default: 20)")
    return top


def main(words: Sequence[str] | None = None) -> int:
    top = parser()
    options = top.parse_args(words)
    if options.max_prompt_length is not None and (options.tokenizer is None or options.max_prompt_length < 1):
        top.error("--max-prompt-length must be at least 1 and needs --tokenizer")
    try:
        for given in options.sources:
            pattern, _, task = given.partition("=")
            register_source(pattern, task)
        tokenizer = None if options.tokenizer is None else load_tokenizer(options.tokenizer)
        findings = validate(options.files, Validator(tokenizer, options.max_prompt_length, options.list))
    except (SourceError, UnknownSource) as error:
        print(f"validate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(table(findings, "characters" if tokenizer is None else "tokens"))
    print("\n".join(findings.listed), end="\n" if findings.listed else "")
    bad = sum(count.bad for count in findings.sources.values())
    if not bad:
        print("nothing is wrong")
        return 0
    kinds = ", ".join(f"{kind} {n}" for kind, n in findings.kinds.most_common())
    print(f"{bad} rows with faults ({kinds}); {len(findings.listed)} of them are listed above")
    return 1


if __name__ == "__main__":
    sys.exit(main())
