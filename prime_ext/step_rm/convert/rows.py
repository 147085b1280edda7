# SPDX-License-Identifier: Apache-2.0
"""What converters share: options, counts, and checks of values."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prime_ext.utils.rows import BadRow

NEUTRAL = ("keep", "positive", "negative", "drop")
AFTER_ERROR = ("drop", "negative", "keep")


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
