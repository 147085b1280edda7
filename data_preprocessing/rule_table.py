# SPDX-License-Identifier: Apache-2.0
"""What the rules for math and for code share: choosing them by name, and the words that made one apply."""

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

# Characters shown on each side of what was found.
AROUND = 30
R = TypeVar("R")


def chosen_rules(table: Mapping[str, R], names: Sequence[str]) -> list[R]:
    """The rules of these names, in the order of the table.

    Raises:
        KeyError: there is no such rule.
    """
    unknown = [name for name in names if name not in table]
    if unknown:
        raise KeyError(f"no rule {unknown[0]!r}; there are {', '.join(table)}")
    return [rule for name, rule in table.items() if name in names]


def around(text: str, match: re.Match[str]) -> str:
    """What was found, with a little of what stands before and behind it."""
    return text[max(match.start() - AROUND, 0) : match.end() + AROUND].strip()


def searched(pattern: re.Pattern[str], text: str) -> str | None:
    """The first place of a pattern and what is around it, or None."""
    match = pattern.search(text)
    return None if match is None else around(text, match)
