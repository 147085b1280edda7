# SPDX-License-Identifier: Apache-2.0
"""Identity and finished items of a run: resume where it stopped, refuse another run's folder.

The identity is everything that the results depend on, as JSON. Items are lines of a file, appended
one by one. A kill at any moment loses at most the item in progress; the next run drops its
unfinished line. When all items are there, the file is written again in order, so its bytes do not
depend on how often the run was interrupted.
"""

import errno
import json
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from prime_ext.utils.files import write_json, write_json_lines

logger = logging.getLogger(__name__)

Row = dict[str, Any]
# After a kill, processes of a run live on for a few seconds; starting it again must not fail.
_SECONDS_TO_END = 30.0
_SECONDS_BETWEEN_SYNCS = 1.0
_ADVICE = "choose another --output"
_UNREADABLE = (
    "the tokenizer cannot read these texts: it lacks a character of theirs, and a token for unknown"
    " ones; give a model that reads any text"
)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
# In texts of Rust's errors, and of torch's writer of archives.
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_TORCH_WRITE = re.compile(r"PytorchStreamWriter failed|inline_container\.cc.*unexpected pos")


class RunError(ValueError):
    """A request that cannot be carried out; the one-line message has what would be right."""


def command(
    name: str,
    *wrong: type[Exception],
    interrupted: str = "interrupted; the same command goes on from here",
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Decorate the ``main`` of the program ``name``: errors become one line and an exit code.

    ``RunError`` and ``wrong``, which the user can mend, have exit code 2, as have texts that a
    tokenizer cannot read, and files that cannot be written. Ctrl-C has 130 and the line
    ``interrupted``.
    """

    caught: tuple[type[Exception], ...] = (RunError, *wrong)

    def decorate(main: Callable[..., int]) -> Callable[..., int]:
        @wraps(main)
        def run(*words: Any) -> int:
            try:
                return main(*words)
            except caught as error:
                # One line from all ranks of torchrun.
                if os.environ.get("RANK", "0") == "0":
                    print(f"{name}: {error}", file=sys.stderr)
                return 2
            except KeyboardInterrupt:
                print(interrupted, file=sys.stderr)
                return 130
            except Exception as error:
                # The Rust library of tokenizers has no class of its own for it.
                unreadable = "Missing [UNK] token" in str(error)
                problem = _UNREADABLE if unreadable else explain_failed_write(error)
                if problem is None:
                    raise
                print(f"{name}: {problem}", file=sys.stderr)
                return 2

        return run

    return decorate


def explain_failed_write(error: BaseException) -> str | None:
    """Return a line for an error, or its cause, of a file that cannot be written; else None.

    Python, torch and safetensors each report a full disk in a way of their own.
    """
    cause: BaseException | None = error
    while cause is not None:
        number = cause.errno if isinstance(cause, OSError) else None
        if number is None and (match := _OS_ERROR.search(str(cause))):
            number = int(match[1])
        if number in _FULL or (isinstance(cause, RuntimeError) and _TORCH_WRITE.search(str(cause))):
            reason = os.strerror(number) if number else "a file could not be written to its end"
            return f"{reason}; free space on the disk, then give the same command again"
        if number in _FORBIDDEN and isinstance(cause, OSError):
            return f"{cause.filename}: {os.strerror(number or 0)}"
        cause = cause.__cause__ or cause.__context__
    return None


def parse_object(content: bytes | str, where: str) -> Row:
    """Parse a JSON object. ``RunError``: the content is not one; ``where`` names it."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not a JSON number")

    try:
        value = json.loads(content, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise RunError(
            f"{where} is broken or half-written: {error}; mend it, or move the file away"
        ) from error
    if not isinstance(value, dict):
        raise RunError(
            f"{where} is a {type(value).__name__}, not an object; mend it, or move the file away"
        )
    return value


def _find_differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield dotted names of the settings that differ, with both values as JSON, shortened."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in old | new:
            yield from _find_differences(
                old.get(name), new.get(name), f"{key}.{name}" if key else name
            )
    elif old != new:
        first, second = (
            text if len(text) <= 80 else f"{text[:77]}..." for text in map(json.dumps, (old, new))
        )
        yield key or "settings", first, second


def check_identity(where: Path, recorded: Any, identity: Any, advice: str = _ADVICE) -> None:
    """Compare the identity that the run in ``where`` recorded with that of this run.

    JSON can hold both. Raises ``RunError``: they differ. The message names the first setting that
    does, and gives the ``advice``.
    """
    for key, old, new in _find_differences(recorded, json.loads(json.dumps(identity))):
        raise RunError(f"{where} holds a run with {key} {old}, now it is {new}; {advice}")


@contextmanager
def run_folder(
    folder: Path, identity: Mapping[str, Any], name: str = "settings.json"
) -> Iterator[None]:
    """Hold a folder for the run with this identity, which is kept in the file ``name``.

    ``RunError``: the folder holds another run, or a process is at work there. Nothing is changed.
    """
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; {_ADVICE}")
    folder.mkdir(parents=True, exist_ok=True)
    with RunLock(folder):
        path = folder / name
        if path.exists():
            check_identity(folder, parse_object(path.read_bytes(), str(path)), identity)
        elif (folder / "results.json").exists():
            raise RunError(f"{folder} has results without {name}; {_ADVICE}")
        else:
            write_json(path, identity)
        yield


class RunLock:
    """Lock on the folder of a run, which the kernel releases when the process ends.

    As a context it does not wait. ``key`` is the setting that names the folder, for messages.
    """

    def __init__(self, folder: Path, key: str = ""):
        self.folder = folder
        self._shown = f"{key}={folder}" if key else str(folder)
        self._holder = folder / ".prime_ext.lock"
        self._lock = FileLock(self._holder, thread_local=False, fallback_to_soft=False)

    def acquire(self, wait_seconds: float = _SECONDS_TO_END) -> None:
        """Take the lock, note who has it. ``RunError``: in use for longer than ``wait_seconds``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                if wait_seconds > 0:
                    logger.warning(
                        "%s; waiting up to %.0f s for it to end", self._describe_use(), wait_seconds
                    )
                self._lock.acquire(timeout=wait_seconds, poll_interval=0.5)
        except Timeout:
            raise RunError(
                f"{self._describe_use()}; wait for that run to end, or choose another folder"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
            logger.warning(
                "%s: this file system has no locks; start no second run there", self.folder
            )
        self._holder.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire(wait_seconds=0)

    def __exit__(self, *_: object) -> None:
        self.release()

    def _describe_use(self) -> str:
        return f"{self._shown} is in use by {self._holder.read_text().strip() or 'a process'}"


class LineFile:
    """Finished items: JSON objects by key in ``rows``, one a line; a context takes new ones.

    A line has the names ``fields``. ``expected`` are the keys that belong here, in order; None for
    any, in the order in which they come. Raises RunError: a line is broken, belongs to no expected
    key, or is there twice. Nothing is changed then.
    """

    def __init__(
        self,
        path: Path,
        key: Callable[[Row], Any],
        fields: Sequence[str],
        expected: Iterable[Hashable] | None = None,
    ) -> None:
        self.path = path
        self._key = key
        self._expected = None if expected is None else list(expected)
        self.rows: dict[Any, Row] = {}
        self._file: Any = None
        self._last_sync = 0.0
        # A kill may have cut off the last line.
        complete, _, cut = (path.read_bytes() if path.exists() else b"").rpartition(b"\n")
        allowed = None if self._expected is None else set(self._expected)
        for number, line in enumerate(complete.splitlines(), start=1):
            where = f"{path} line {number}"
            row = parse_object(line, where)
            if set(row) != set(fields):
                raise RunError(
                    f"{where} does not hold {', '.join(fields)}; mend it, or move the file away"
                )
            if allowed is not None and key(row) not in allowed:
                raise RunError(
                    f"{where} {key(row)} belongs to no item of this run; move the file away"
                )
            if key(row) in self.rows:
                raise RunError(f"{where} {key(row)} is there a second time; remove it")
            self.rows[key(row)] = row
        # The keys in the file, in its order; None where it must be written again.
        self._written: list[Any] | None = None if cut else list(self.rows)

    def keep(self, keep: Callable[[Row], bool]) -> None:
        """Drop rows for which ``keep`` is false."""
        self.rows = {key: row for key, row in self.rows.items() if keep(row)}

    def __enter__(self) -> "LineFile":
        self._write()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a", encoding="utf-8")
        return self

    def append(self, row: Row) -> None:
        """Add a row, which survives a kill. Rows are synced to the disk about once a second."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        if time.monotonic() - self._last_sync >= _SECONDS_BETWEEN_SYNCS:
            os.fsync(self._file.fileno())
            self._last_sync = time.monotonic()
        self.rows[self._key(row)] = row

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        os.fsync(self._file.fileno())
        self._file.close()
        self._written = list(self.rows)
        if kind is None and self._expected is not None:
            self.rows = {key: self.rows[key] for key in self._expected if key in self.rows}
            self._write()

    def _write(self) -> None:
        if self._written != list(self.rows):
            write_json_lines(self.path, self.rows.values())
            self._written = list(self.rows)
