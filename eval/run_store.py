# SPDX-License-Identifier: Apache-2.0
"""A run's folder: what it depends on, and lines that are written as they come and never twice.

Lines go to the end of their file one by one, so that a kill at any moment loses at most the line under way, whose
unfinished rest is dropped by the next run. When all are there the file is written again in order: its bytes do not
depend on how often the run was interrupted.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from eval.run_plan import RunError
from prime_ext.utils.files import read_json, write_json, write_json_lines

SETTINGS = "settings.json"
Key = tuple[str, int]
Row = dict[str, Any]


def key_of(row: Mapping[str, Any]) -> Key:
    """Problem and number of a response."""
    return row["problem"], row["sample"]


class LineFile:
    """JSON lines of responses, by problem and number.

    Args:
        path: of the file; it need not exist.
        fields: types by name of what a line holds.
        wanted: the keys that belong here, in order.

    Attributes:
        rows: what is there, by key.

    Raises:
        RunError: a line that is no such object, or belongs to no wanted key, or is there twice. Nothing is changed.
    """

    def __init__(self, path: Path, fields: Mapping[str, type | tuple[type, ...]], wanted: Iterable[Key]) -> None:
        self.path = path
        self._order = {key: place for place, key in enumerate(wanted)}
        self._fields = fields
        self.rows: dict[Key, Row] = {}
        self._file: Any = None
        content = path.read_bytes() if path.exists() else b""
        # A kill may have cut off the last line.
        whole, newline, self._cut = content.rpartition(b"\n")
        for number, line in enumerate((whole + newline).splitlines(), start=1):
            row = self._read(line, number)
            self.rows[key_of(row)] = row
        self._written = list(self.rows)

    def _read(self, line: bytes, number: int) -> Row:
        where = f"{self.path} line {number}"
        hint = "mend it, or move the file away to make its lines anew"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RunError(f"{where} is broken ({error}); {hint}") from error
        names = list(row) if isinstance(row, dict) else []
        wrong = names != list(self._fields) or any(
            not isinstance(row[name], kind) for name, kind in self._fields.items()
        )
        if wrong:
            raise RunError(f"{where} is broken (not an object of {', '.join(self._fields)}); {hint}")
        if key_of(row) not in self._order:
            raise RunError(f"{where} belongs to no response of this run ({row['problem']}, {row['sample']}); {hint}")
        if key_of(row) in self.rows:
            raise RunError(f"{where} is there a second time ({row['problem']}, {row['sample']}); {hint}")
        return row

    def keep(self, keep: Callable[[Row], bool]) -> None:
        """Forget rows for which ``keep`` is false."""
        self.rows = {key: row for key, row in self.rows.items() if keep(row)}

    def __enter__(self) -> "LineFile":
        if self._cut or list(self.rows) != self._written:
            write_json_lines(self.path, self.rows.values())
            self._cut, self._written = b"", list(self.rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a", encoding="utf-8")
        return self

    def append(self, row: Row) -> None:
        """Add a row at the end; it survives a kill of this process."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        self.rows[key_of(row)] = row
        self._written.append(key_of(row))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        ordered = sorted(self.rows, key=self._order.__getitem__)
        if error is None and ordered != self._written:
            self.rows = {key: self.rows[key] for key in ordered}
            write_json_lines(self.path, self.rows.values())
            self._written = ordered


@contextmanager
def run_folder(folder: Path, settings: dict[str, Any]) -> Iterator[None]:
    """Hold a folder for a run with these settings.

    Args:
        folder: of the run; made if it is not there.
        settings: everything that the responses depend on, for JSON.

    Raises:
        RunError: it holds a run with other settings, something else, or a run is under way there. Nothing is changed.
    """
    settings = json.loads(json.dumps(settings))
    if folder.exists() and not folder.is_dir():
        raise RunError(f"--output {folder} is a file; give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        path = folder / SETTINGS
        if path.exists():
            _check(path, settings)
        else:
            if (folder / "results.json").exists():
                raise RunError(f"{folder} has results without {SETTINGS}; choose another --output")
            write_json(path, settings)
        yield


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder; the lock ends with this process, however that ends.

    Raises:
        RunError: another process has it.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                f"another process is at work in {folder}; wait for it, or choose another --output"
            ) from error
        yield
    finally:
        os.close(handle)


def _check(path: Path, settings: dict[str, Any]) -> None:
    try:
        earlier = read_json(path)
    except ValueError as error:
        raise RunError(f"{path} is broken ({error}); choose another --output") from error
    for key, (old, new) in _differences(earlier, settings):
        raise RunError(
            f"{path.parent} holds a run with {key} {_brief(old)}, now it is {_brief(new)}; choose another --output"
        )


def _differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            yield from _differences(old.get(name), new.get(name), f"{key}.{name}" if key else name)
    elif old != new:
        yield key or "settings", (old, new)


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
