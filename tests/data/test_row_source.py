# SPDX-License-Identifier: Apache-2.0
"""Rows in chunks: an id counts once for each source."""

from types import SimpleNamespace

from data_preprocessing.row_source import chunks
from prime_ext.utils.rows import BadRow


def rows_of(ids):
    source = SimpleNamespace(name="set", id_column="id")
    given = [(number, {"id": value}) for number, value in enumerate(ids, start=1)]
    split = SimpleNamespace(source=source, split="train", name="rows", path=None, rows=lambda: given)
    return [row for chunk in chunks([split], 2) for _, row in chunk.rows]


def test_only_an_equal_id_was_there_before():
    """Python's own hash takes -1 and -2 for the same, and 1 and 1 + 2**61 - 1."""
    ids = [-1, -2, 1, 2**61, "1", "-1"]
    assert [row["id"] for row in rows_of(ids)] == ids
    *first, again = rows_of([*ids, -2])
    assert len(first) == len(ids) and isinstance(again, BadRow)
