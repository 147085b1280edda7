# SPDX-License-Identifier: Apache-2.0
"""What the commands that make rows have in common: options, exit codes, a line for what went wrong or each source."""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prime_ext.generate.backend import BackendError
from prime_ext.tasks.task import SPLITS
from prime_ext.tasks.task_file import TaskError
from prime_ext.utils.rows import SourceError
from prime_ext.utils.run_store import RunError
from prime_ext.verifiers.sources import UnknownSource

Made = tuple[dict[str, Any], list[Path]]


def parser_of(program: str, description: str | None) -> argparse.ArgumentParser:
    """A parser that shows the module's docstring as it is written."""
    name, kind = f"python -m data_preprocessing.{program}", argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=name, description=description, formatter_class=kind)


class InputFiles(argparse.Action):
    """``name=file`` or ``name:split=file``, any number of times; gives ``{name: {split: path}}``.

    The destination must have the default ``{}``. Without a split the file is of the split ``all``.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        given = {name: dict(files) for name, files in getattr(namespace, self.dest).items()}
        for value in values or ():
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
    """A hidden folder; what lies in it moves to ``folder`` when the block ends without an error: all files or none."""
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


def only_named(given: Mapping[str, Any], names: Sequence[str], option: str) -> None:
    """Local files must be of what is asked for, else SourceError."""
    for name in given:
        if name not in names:
            raise SourceError(f"--input names {name}, which is not among {option} {' '.join(names)}")


def positive(options: argparse.Namespace, *names: str) -> None:
    """Numbers that must be at least 1, else SourceError."""
    for name in names:
        if getattr(options, name) < 1:
            raise SourceError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")


def finish(program: str, run: Callable[[], Made], then: Callable[[Mapping[str, Any], list[Path]], int]) -> int:
    """Run a command that makes rows, say what became of each source, and end with ``then``.

    ``run`` returns the report and the files, ``then`` the exit code, which is 2 after an error and 130 after Ctrl-C.
    """
    try:
        report, paths = run()
    except (SourceError, RunError, BackendError, UnknownSource, TaskError, OSError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; answers and verdicts are kept, the same command asks for the rest", file=sys.stderr)
        return 130
    for found in report.get("sources", ()):
        removed = ", ".join(f"{name} {n}" for name, n in found["removed"].items()) or "nothing removed"
        print(f"{found['split']} {found['data_source']}: {found['read']} rows, {removed}, {found['written']} written")
    return then(report, paths)
