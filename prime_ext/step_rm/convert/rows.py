# SPDX-License-Identifier: Apache-2.0
"""What converters share: options, counts, checks of values, and a reader that goes on after a malformed line."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prime_ext.files import numbered_lines
from prime_ext.prm.offline.data import BadData, read_rows
from prime_ext.step_rm.labels import StepRMError

NEUTRAL = ("keep", "positive", "negative", "drop")
AFTER_ERROR = ("drop", "negative", "keep")


class BadRow(ValueError):
    """A row that cannot be converted; the message says why."""


@dataclass
class Context:
    """What a converter is told, and what it counts.

    Attributes:
        after_error: what follows the first wrong step: ``drop`` (no label), ``negative``, or ``keep`` (as labelled).
        keep_flagged: whether PRM800K completions that a labeler flagged count.
        counts: everything left out or mended, by its reason.
    """

    after_error: str = "keep"
    keep_flagged: bool = False
    counts: Counter[str] = field(default_factory=Counter)


def text(value: Any, name: str) -> str:
    """A text that is not empty."""
    if not isinstance(value, str):
        raise BadRow(f"{name} must be a text, got {str(value)[:60]!r}")
    if not value.strip():
        raise BadRow(f"{name} is empty")
    return value


def listed(row: Mapping[str, Any], name: str) -> list[Any]:
    """A list that is not empty."""
    value = row.get(name)
    if not isinstance(value, list) or not value:
        raise BadRow(f"{name} must be a list that is not empty, got {str(value)[:60]!r}")
    return value


def cut_after_error(labels: list[int | None], rule: str) -> list[int | None]:
    """Apply the rule for what follows the first wrong step; None is no label."""
    if rule == "keep" or -1 not in labels:
        return labels
    first = labels.index(-1) + 1
    return labels[:first] + [-1 if rule == "negative" else None] * (len(labels) - first)


def numbered_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Rows with their numbers from 1 (lines, in JSON Lines); a line that is no JSON comes as a :class:`BadRow`.

    A ``.json`` file that holds JSON Lines is read as such, as PSPO's data are published.

    Raises:
        StepRMError: no such file or format.
    """
    lines = path.name.endswith((".jsonl", ".jsonl.gz")) or (path.suffix == ".json" and not _is_list(path))
    try:
        if not lines:
            yield from enumerate(read_rows(path), start=1)
            return
    except BadData as error:
        raise StepRMError(str(error)) from error
    if not path.is_file():
        raise StepRMError(f"{path} does not exist")
    for number, line in numbered_lines(path):
        try:
            yield number, json.loads(line)
        except ValueError as error:
            yield number, BadRow(f"not JSON: {error}")


def _is_list(path: Path) -> bool:
    if not path.is_file():
        return True
    with path.open(encoding="utf-8") as file:
        return file.read(256).lstrip().startswith("[")
