# SPDX-License-Identifier: Apache-2.0
"""Rows in batches."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of ``size``, the last of what is left (``itertools.batched`` of Python 3.12, but lists)."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
