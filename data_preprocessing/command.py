# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the commands that make rows: options, exit codes, lines about sources."""

import argparse
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from prime_ext.config.checks import SettingsError
from prime_ext.generate.backend import BackendError
from prime_ext.tasks.benchmark_task import SPLITS
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
