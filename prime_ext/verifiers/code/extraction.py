# SPDX-License-Identifier: Apache-2.0
"""The program in a response: its last complete Python fence."""

import textwrap
from collections.abc import Sequence

_LANGUAGES = ("python", "python3", "py", "")
MAX_PROGRAM_CHARACTERS = 200_000


def extract_program(response: str) -> str | None:
    """Return the program in a response, None without one, in linear time.

    A fence opens on a line of three or more backticks, alone or followed by ``python``, ``python3`` or ``py``, and
    closes on a line of at least as many backticks and nothing else. The last complete fence counts, since trying all
    would reward guessing; those with a name of Python go before unnamed ones, and other languages are passed over.
    """
    named: str | None = None
    unnamed: str | None = None
    opened: tuple[int, str] | None = None
    lines: list[str] = []
    for line in response.splitlines():
        ticks, info = _fence(line)
        if opened is None:
            if ticks:
                opened, lines = (ticks, info), []
        elif ticks >= opened[0] and not info:
            language = opened[1].lower()
            if language in _LANGUAGES:
                found = "\n".join(lines) + "\n"
                named, unnamed = (found, unnamed) if language else (named, found)
            opened = None
        else:
            lines.append(line)
    program = named if named is not None else unnamed
    if program is None or not program.strip() or len(program) > MAX_PROGRAM_CHARACTERS:
        return None
    return program


def as_methods(program: str, entry_points: Sequence[str]) -> str:
    """Put functions into the class ``Solution`` if tests call nothing else (LeetCode), as PRIME's evaluation does."""
    if tuple(entry_points) != ("Solution",) or "class Solution" in program:
        return program
    return "class Solution:\n" + textwrap.indent(program, "    ")


def _fence(line: str) -> tuple[int, str]:
    """Return the number of backticks of a fence line and the word behind them, (0, "") for any other line."""
    text = line.strip()
    ticks = len(text) - len(text.lstrip("`"))
    info = text[ticks:].strip()
    if ticks < 3 or "`" in info:
        return 0, ""
    return ticks, info
