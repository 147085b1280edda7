# SPDX-License-Identifier: Apache-2.0
"""Cells of a benchmark's rows: find them, and read them as text."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from prime_ext.config.checks import STRICT
from prime_ext.tasks.value_types import Text, Texts, is_whole
from prime_ext.utils.rows import BadRow

# {{name}} in a text: a field of the problem, or a cell of the row.
PLACEHOLDER = re.compile(r"\{\{([\w.]+)\}\}")


def fill_in(text: str, values: Mapping[str, str]) -> str:
    """Fill in values for their names in one pass: braces inside a value stay."""
    return PLACEHOLDER.sub(lambda match: values[match[1]], text)


def _check_one_group(pattern: re.Pattern[str]) -> re.Pattern[str]:
    if pattern.groups != 1:
        raise ValueError("must have one group in round brackets, the text")
    return pattern


@dataclass(frozen=True)
class Pick:
    """A text from the first column that a row has; ``meta.level`` is ``level`` in its ``meta``."""

    __pydantic_config__ = STRICT
    columns: Annotated[Texts, Field(alias="column")]
    # None: the complete cell.
    pattern: Annotated[re.Pattern[str], AfterValidator(_check_one_group)] | None = None

    def read(self, row: Mapping[str, Any]) -> str:
        """Return the text. ``BadRow``: the column is missing, not a text, or does not match."""
        column = find_column(row, self.columns)
        text = read_cell(cell(row, column), column)
        if self.pattern is None:
            return text
        match = self.pattern.search(text)
        if match is None or not match[1]:
            raise BadRow(f"{column} {text[:60]!r} does not match {self.pattern.pattern}")
        return match[1]


@dataclass(frozen=True)
class Composed:
    """Text around cells, not stripped: the first of ``texts`` whose ``{{column}}`` are filled."""

    __pydantic_config__ = STRICT
    texts: Annotated[tuple[Text, ...], Field(alias="first_of", min_length=1)]

    def read(self, row: Mapping[str, Any]) -> str:
        """Return the text. ``BadRow``: the row has the cells of no text."""
        for text in self.texts:
            if all(
                has(row, column) and _is_filled(cell(row, column), column)
                for column in PLACEHOLDER.findall(text)
            ):
                return PLACEHOLDER.sub(lambda match: str(cell(row, match[1])), text)
        columns = " or ".join("+".join(PLACEHOLDER.findall(text)) for text in self.texts)
        raise BadRow(f"no text in column {columns}; {describe_columns(row)}")


# In a task file: columns alone, or a mapping with a pattern, or with texts around cells.
Columns = Annotated[
    Pick, BeforeValidator(lambda value: value if isinstance(value, Mapping) else {"column": value})
]
Shown = Annotated[
    Annotated[Columns, Tag("<columns>")] | Annotated[Composed, Tag("<texts>")],
    Discriminator(lambda value: "<texts>" if isinstance(value, Mapping) else "<columns>"),
]


def _is_filled(value: Any, column: str) -> bool:
    """Return whether a cell is neither null nor blank. ``BadRow``: neither text nor number."""
    return value is not None and bool(str(value).strip()) and bool(read_cell(value, column))


def has(row: Mapping[str, Any], column: str) -> bool:
    """Return whether a row has a column, named as in :class:`Pick`."""
    outer, dot, inner = column.partition(".")
    if column in row or not dot:
        return column in row
    return isinstance(row.get(outer), Mapping) and has(row[outer], inner)


def cell(row: Mapping[str, Any], column: str) -> Any:
    """Return the cell of a row. ``BadRow``: there is none."""
    find_column(row, [column])
    if column in row:
        return row[column]
    outer, _, inner = column.partition(".")
    return cell(row[outer], inner)


def find_column(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return the first of the columns that a row has. ``BadRow``: it has none."""
    for column in columns:
        if has(row, column):
            return column
    raise BadRow(f"no column {' or '.join(columns)}; {describe_columns(row)}")


def describe_columns(row: Mapping[str, Any]) -> str:
    return f"it has {', '.join(map(str, row)) or 'none'}"


def read_cell(value: Any, column: str) -> str:
    """Read a cell as text. ``BadRow``: neither text nor number, NaN, empty, or not valid UTF-8."""
    missing = isinstance(value, float) and not math.isfinite(value)
    if missing or isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise BadRow(f"{column} must be a text, got {str(value)[:40]!r}")
    text = str(value).strip()
    if not text:
        raise BadRow(f"{column} is empty")
    if not is_whole(text):
        raise BadRow(f"{column} has half a character (a lone surrogate)")
    return text
