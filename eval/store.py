# SPDX-License-Identifier: Apache-2.0
"""A run's folder: what it depends on, and lines that are written as they come and never twice.

Lines go to the end of their file one by one, so that a kill at any moment loses at most the line under way, whose
unfinished rest is dropped by the next run. When all are there the file is written again in order: its bytes do not
depend on how often the run was interrupted.
"""

import fcntl
import json
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from prime_ext.utils.files import write_json, write_json_lines

Row = dict[str, Any]
Key = tuple[str, int]


class RunError(ValueError):
    """Something cannot be done as asked; the message is one line and says what would be right."""


def command(name: str, *wrong: type[Exception]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Makes of a ``main`` a command: what cannot be done is one line and exit code 2, Ctrl-C 130; ``wrong`` as well."""

    def of(main: Callable[..., int]) -> Callable[..., int]:
        @wraps(main)
        def run(*words: Any) -> int:
            try:
                return main(*words)
            except (RunError, *wrong) as error:
                print(f"{name}: {error}", file=sys.stderr)
                return 2
            except KeyboardInterrupt:
                print("interrupted; the same command goes on from here", file=sys.stderr)
                return 130

        return run

    return of


def key_of(row: Mapping[str, Any]) -> Key:
    """Problem and number of a response."""
    return row["problem"], row["sample"]


def parse(content: bytes | str, where: str) -> Row:
    """The JSON object in ``content``. ``RunError``: there is none."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not a JSON number")

    try:
        value = json.loads(content, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{where} is broken or half-written: {error}; mend it, or move the file away") from error
    if not isinstance(value, dict):
        raise RunError(f"{where} is a {type(value).__name__}, not an object; mend it, or move the file away")
    return value


class LineFile:
    """JSON objects by key, one a line; ``rows`` are what is there. Used as a context, it takes new ones.

    Args:
        path: of the file; it need not exist.
        fields: names of what a line holds.
        wanted: the keys that belong here, in order; None for any.
        key: of a row.

    Raises:
        RunError: a line that is no such object, or belongs to no wanted key, or is there twice. Nothing is changed.
    """

    def __init__(
        self,
        path: Path,
        fields: Sequence[str],
        wanted: Iterable[Hashable] | None = None,
        key: Callable[[Row], Any] = key_of,
    ) -> None:
        self.path, self._key = path, key
        self._wanted = None if wanted is None else list(wanted)
        self.rows: dict[Any, Row] = {}
        self._file: Any = None
        # A kill may have cut off the last line.
        whole, _, cut = (path.read_bytes() if path.exists() else b"").rpartition(b"\n")
        allowed = None if self._wanted is None else set(self._wanted)
        for number, line in enumerate(whole.splitlines(), start=1):
            where = f"{path} line {number}"
            row = parse(line, where)
            if set(row) != set(fields):
                raise RunError(f"{where} does not hold {', '.join(fields)}; mend it, or move the file away")
            if allowed is not None and key(row) not in allowed:
                raise RunError(f"{where} {key(row)} belongs to no response of this run; move the file away")
            if key(row) in self.rows:
                raise RunError(f"{where} {key(row)} is there a second time; remove it")
            self.rows[key(row)] = row
        # What the file holds, in its order; None where it must be written again.
        self._written: list[Any] | None = None if cut else list(self.rows)

    def keep(self, keep: Callable[[Row], bool]) -> None:
        """Forget rows for which ``keep`` is false."""
        self.rows = {key: row for key, row in self.rows.items() if keep(row)}

    def __enter__(self) -> "LineFile":
        self._write()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a", encoding="utf-8")
        return self

    def append(self, row: Row) -> None:
        """Add a row at the end; it survives a kill of this process."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        self.rows[self._key(row)] = row

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        self._written = list(self.rows)
        if kind is None and self._wanted is not None:
            self.rows = {key: self.rows[key] for key in self._wanted if key in self.rows}
            self._write()

    def _write(self) -> None:
        if self._written != list(self.rows):
            write_json_lines(self.path, self.rows.values())
            self._written = list(self.rows)


def refuse_a_file(output: Path | None) -> Path | None:
    """The folder of ``--output``, which need not exist. ``RunError``: it is a file."""
    if output is not None and output.exists() and not output.is_dir():
        raise RunError(f"--output {output} is a file; give a folder")
    return output


@contextmanager
def run_folder(folder: Path, settings: dict[str, Any], name: str = "settings.json") -> Iterator[None]:
    """Hold a folder for a run with these settings: everything that the results depend on, kept in the file ``name``.

    ``RunError``: it holds a run with other settings, something else, or a run is under way there. Nothing is changed.
    """
    settings = json.loads(json.dumps(settings))
    refuse_a_file(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        path = folder / name
        if path.exists():
            for key, old, new in _differences(parse(path.read_bytes(), str(path)), settings):
                raise RunError(f"{folder} holds a run with {key} {old}, now it is {new}; choose another --output")
        elif (folder / "results.json").exists():
            raise RunError(f"{folder} has results without {name}; choose another --output")
        else:
            write_json(path, settings)
        yield


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder; the lock ends with this process, however that ends. ``RunError``: another process has it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"another process is at work in {folder}; wait for it, or choose another --output"
            raise RunError(message) from error
        yield
    finally:
        os.close(handle)


def _differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Dotted names of the settings that differ, with both values, shortened."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            yield from _differences(old.get(name), new.get(name), f"{key}.{name}" if key else name)
    elif old != new:
        texts = [json.dumps(value) for value in (old, new)]
        first, second = (text if len(text) <= 80 else f"{text[:77]}..." for text in texts)
        yield key or "settings", first, second
