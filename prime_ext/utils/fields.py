# SPDX-License-Identifier: Apache-2.0
"""Typed fields of rows: every error names the field, and :func:`parse_rows` file and row."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from prime_ext.utils.rows import BadRow, SourceError, read_source
from prime_ext.utils.text_tokens import Prompt

Row = Mapping[str, Any]
T = TypeVar("T")


def parse_rows(path: Path, parse: Callable[[Row], T]) -> Iterator[tuple[str, T]]:
    """Yield the place (file and row) and ``parse(row)`` of all rows of a file.

    Raises SourceError, which names the place: the file cannot be read, has no rows, or ``parse``
    raises :class:`BadRow`.
    """
    yield from parse_numbered(read_source(path), parse, str(path))


def parse_numbered(
    rows: Iterable[tuple[int, Row | BadRow]], parse: Callable[[Row], T], source: str
) -> Iterator[tuple[str, T]]:
    """Do as :func:`parse_rows` with numbered rows of ``source``."""
    number = 0
    for number, row in rows:
        where = f"{source} row {number}"
        try:
            if isinstance(row, BadRow):
                raise row
            yield where, parse(row)
        except BadRow as error:
            raise SourceError(f"{where}: {error}") from error
    if not number:
        raise SourceError(f"{source} has no rows")


def show_value(value: Any) -> str:
    """Return a value for a message, cut short."""
    return repr(value)[:60]


def get_field(row: Row, *names: str) -> tuple[str, Any]:
    """Return name and value of the first field that a row has. Raises BadRow: it has none."""
    for name in names:
        if name in row:
            return name, row[name]
    raise BadRow(f"no field {' or '.join(map(repr, names))}; it has {sorted(map(str, row))}")


def check_text(value: Any, name: str, may_be_empty: bool = False) -> str:
    """Return a value that must be a text. Raises BadRow: it is not, or it is empty."""
    if not isinstance(value, str):
        raise BadRow(f"{name} must be a text, got {show_value(value)}")
    if not (may_be_empty or value.strip()):
        raise BadRow(f"{name} is empty")
    return value


def get_text(row: Row, *names: str, may_be_empty: bool = False) -> str:
    """Return a field that must be a text. Raises BadRow."""
    name, value = get_field(row, *names)
    return check_text(value, name, may_be_empty)


def get_list(row: Row, *names: str, length: int | None = None) -> list[Any]:
    """Return a field that must be a list, not empty, of ``length`` values. Raises BadRow."""
    name, value = get_field(row, *names)
    if not isinstance(value, list) or not value:
        raise BadRow(f"{name} must be a list that is not empty, got {show_value(value)}")
    if length is not None and len(value) != length:
        raise BadRow(f"{name} must have {length} values, got {len(value)}")
    return value


def get_texts(row: Row, *names: str, may_be_empty: bool = False) -> list[str]:
    """Return a field that must be a list of texts, not empty. Raises BadRow."""
    name, _ = get_field(row, *names)
    return [
        check_text(value, f"{name} {number}", may_be_empty)
        for number, value in enumerate(get_list(row, *names), start=1)
    ]


def check_whole(value: Any, name: str, low: int, high: float = math.inf) -> int:
    """Return a value that must be a whole number from ``low`` to ``high``. Raises BadRow."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        limit = f" to {high:,}" if high < math.inf else ""
        raise BadRow(f"{name} must be a whole number from {low}{limit}, got {show_value(value)}")
    return value


def get_prompt(row: Row, *names: str) -> Prompt:
    """Return a field that must be a text or chat messages, not empty. Raises BadRow."""
    name, value = get_field(row, *names)
    if isinstance(value, str) and value.strip():
        return value
    if (
        isinstance(value, list)
        and value
        and all(
            isinstance(message, dict)
            and all(isinstance(message.get(key), str) for key in ("role", "content"))
            for message in value
        )
    ):
        return value
    raise BadRow(
        f"{name} must be a text or a list of messages with role and content, got"
        f" {show_value(value)}"
    )
