# SPDX-License-Identifier: Apache-2.0
"""Tables in Markdown."""

from collections.abc import Sequence


def cell(text: str) -> str:
    """Text on one line of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("$", "\\$")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, and an empty one."""
    return [
        f"| {' | '.join(header)} |",
        f"| {' | '.join('---' for _ in header)} |",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
