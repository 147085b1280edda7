# SPDX-License-Identifier: Apache-2.0
"""What the commands that make rows have in common: options, exit codes, a line for what went wrong or each source."""

import argparse
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prime_ext.generate.backend import BackendError
from prime_ext.tasks.task import SPLITS
from prime_ext.tasks.task_file import TaskError
from prime_ext.utils.rows import SourceError
from prime_ext.utils.run_store import command
from prime_ext.verifiers.sources import UnknownSource

Made = tuple[dict[str, Any], list[Path]]


def build_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows the module's docstring as it is written."""
    name, kind = f"python -m data_preprocessing.{program}", argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=name, description=description, formatter_class=kind)


class InputFiles(argparse.Action):
    """``name=file`` or ``name:split=file``, any number of times; gives ``{name: {split: path}}``.

    The destination must have the default ``{}``. Without a split the file is of the split ``all``.
    """

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        given = {name: dict(files) for name, files in getattr(namespace, self.dest).items()}
        for value in values:
            target, equals, path = value.partition("=")
            name, colon, split = target.partition(":")
            split = split if colon else "all"
            if not equals or not path or split not in SPLITS:
                kind = str(self.metavar).partition("[")[0]
                parser.error(f"--input {value}: must be {kind}=FILE or {kind}:SPLIT=FILE with {', '.join(SPLITS)}")
            if split in given.setdefault(name, {}):
                parser.error(f"--input {value}: {name} already has a file for {split}")
            given[name][split] = Path(path)
        setattr(namespace, self.dest, given)


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder; its files move to ``folder`` when the block ends without an error."""
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


def check_positive(options: argparse.Namespace, *names: str) -> None:
    """Raise SourceError for an option that is not at least 1."""
    for name in names:
        if getattr(options, name) < 1:
            raise SourceError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")


def run_program(program: str, work: Callable[[], int]) -> int:
    """Run the work of a program. Returns its exit code; 2 after one line for an error, 130 after Ctrl-C."""
    kept = "interrupted; finished answers and verdicts are kept"
    return command(program, SourceError, BackendError, UnknownSource, TaskError, OSError, interrupted=kept)(work)()


def finish(program: str, run: Callable[[], Made], then: Callable[[Mapping[str, Any], list[Path]], int]) -> int:
    """Run a program that makes rows, say what became of each source, and end with ``then``.

    ``run`` returns the report and the files, ``then`` the exit code.
    """

    def work() -> int:
        report, paths = run()
        for found in report.get("sources", ()):
            removed = ", ".join(f"{name} {n}" for name, n in found["removed"].items()) or "nothing removed"
            name = f"{found['split']} {found['data_source']}"
            print(f"{name}: {found['read']} rows, {removed}, {found['written']} written")
        return then(report, paths)

    return run_program(program, work)
