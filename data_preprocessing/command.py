# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the commands that make rows: options, exit codes, lines about sources."""

import argparse
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from prime_ext.config.checks import SettingsError
from prime_ext.generate.backend import BackendError
from prime_ext.tasks.benchmark_task import SPLITS
from prime_ext.tasks.rl_rows import refuse_leftovers, write_rows
from prime_ext.utils.arguments import COUNT
from prime_ext.utils.rows import SourceError
from prime_ext.utils.run_store import RunLock, command
from prime_ext.verifiers.sources import UnknownSource


def add_files_argument(parser: argparse.ArgumentParser, kind: str, about: str) -> None:
    """Add ``--input`` for :func:`parse_files`; ``kind`` is what a file is of, such as TASK."""
    shown = f"{kind}[:SPLIT]=FILE"
    options = {"nargs": "+", "action": "extend", "default": [], "metavar": shown, "help": about}
    parser.add_argument("--input", **options)


def parse_files(words: Sequence[str]) -> dict[str, dict[str, Path]]:
    """Return files by name and split from ``NAME=FILE`` (split ``all``) and ``NAME:SPLIT=FILE``.

    Raises SourceError: a word has another form, or repeats a name with its split.
    """
    files: dict[str, dict[str, Path]] = {}
    for word in words:
        target, _, path = word.partition("=")
        name, colon, split = target.partition(":")
        split = split if colon else "all"
        if not path or split not in SPLITS:
            raise SourceError(
                f"--input {word} must be NAME=FILE or NAME:SPLIT=FILE with {', '.join(SPLITS)}"
            )
        if split in files.setdefault(name, {}):
            raise SourceError(f"--input {word}: {name} already has a file for {split}")
        files[name][split] = Path(path)
    return files


def read_weights(
    words: Sequence[str],
    kind: str,
    split: Callable[[str], tuple[str, str, str]] = lambda word: word.partition("="),
) -> dict[str, float]:
    """Return the weight of each ``NAME`` (1) or ``NAME=WEIGHT``, which ``split`` divides at ``=``.

    Raises SourceError: a weight is not positive, or a name is repeated; ``kind`` is what it names.
    """
    weights: dict[str, float] = {}
    for word in words:
        name, equals, weight = split(word)
        try:
            number = float(weight) if equals else 1.0
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf") or name in weights:
            raise SourceError(
                f"{word} must be {kind} or {kind}=WEIGHT, with a positive weight, and each"
                f" {kind.lower()} once"
            )
        weights[name] = number
    return weights


def add_size_arguments(parser: argparse.ArgumentParser, unit: str) -> None:
    """Add ``--size`` and ``--test-size`` for :func:`divide_sizes`."""
    parser.add_argument("--size", type=COUNT, default=2000, help=f"training {unit} (default: 2000)")
    parser.add_argument(
        "--test-size", type=COUNT, default=256, help=f"held-out {unit} (default: 256)"
    )


def divide_sizes(options: argparse.Namespace, weights: Sequence[float]) -> list[dict[str, int]]:
    """Return for each weight its number of rows by split, test first."""
    counts: list[dict[str, int]] = [{} for _ in weights]
    for split, size in (("test", options.test_size), ("train", options.size)):
        ends = [round(size * sum(weights[:n]) / sum(weights)) for n in range(len(weights) + 1)]
        for number, of_weight in enumerate(counts):
            of_weight[split] = ends[number + 1] - ends[number]
    return counts


def write_splits(
    folder: Path, schema: pa.Schema, rows: Mapping[str, list[dict[str, Any]]], seed: int
) -> list[Path]:
    """Shuffle and number the rows of each split, write all files or none; return their paths."""
    refuse_leftovers(folder, list(rows))
    with fill_folder(folder) as hidden:
        for split, made in rows.items():
            random.Random(seed).shuffle(made)
            for index, row in enumerate(made):
                row["extra_info"]["index"] = index
            write_rows(hidden / f"{split}.parquet", schema, made)
    return [folder / f"{split}.parquet" for split in ("train", "test")]


@contextmanager
def fill_folder(folder: Path, *others: Path) -> Iterator[Path]:
    """Yield a hidden folder; its files move to ``folder`` when the block ends without an error.

    No other process fills ``folder`` or ``others`` meanwhile. RunError: one is at work there.
    """
    hidden = folder / ".unfinished"
    with ExitStack() as locks:
        for held in {path.resolve(): path for path in (folder, *others)}.values():
            locks.enter_context(RunLock(held))
        shutil.rmtree(hidden, ignore_errors=True)
        hidden.mkdir()
        try:
            yield hidden
            for path in sorted(hidden.iterdir()):
                path.replace(folder / path.name)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)


def program(name: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Decorate the main of a program: errors become one line and exit code 2, Ctrl-C 130."""
    kept = "interrupted; finished answers and verdicts are kept"
    caught = (SourceError, BackendError, UnknownSource, SettingsError, OSError)
    return command(name, *caught, interrupted=kept)


def print_sources(report: Mapping[str, Any]) -> None:
    """Print what became of the rows of each source of a report."""
    for source in report["sources"]:
        removed = (
            ", ".join(f"{name} {n}" for name, n in source["removed"].items()) or "nothing removed"
        )
        name = f"{source['split']} {source['data_source']}"
        print(f"{name}: {source['read']} rows, {removed}, {source['written']} written")
