# SPDX-License-Identifier: Apache-2.0
"""Numbers, prompts and settings as the reports show them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

NONE = "–"


def format_percent(value: float | None) -> str:
    """Format a fraction in percent, without the sign."""
    return NONE if value is None else f"{100 * value:.1f}"


def format_score(estimate: Mapping[str, Any] | None) -> str:
    """Format an estimate with its standard error, in percent."""
    if estimate is None:
        return NONE
    error = estimate["standard_error"]
    return format_percent(estimate["value"]) + (
        f" ± {format_percent(error)}" if error is not None else ""
    )


def format_interval(estimate: Mapping[str, Any] | None) -> str:
    """Format the 95 % interval of an estimate, in percent."""
    if estimate is None or estimate["low"] is None:
        return NONE
    return f"{format_percent(estimate['low'])} to {format_percent(estimate['high'])}"


def format_estimate(estimate: Mapping[str, Any] | None) -> list[str]:
    """Format score, interval and number of problems: three cells of a table."""
    problems = estimate["problems"] if estimate else 0
    return [format_score(estimate), format_interval(estimate), format_number(problems)]


def format_mean(estimate: Mapping[str, Any] | None) -> str:
    """Format the mean of any numbers with its 95 % interval."""
    if estimate is None:
        return NONE
    ends = "" if estimate["low"] is None else f" ({estimate['low']:.2f} to {estimate['high']:.2f})"
    return f"{estimate['value']:.2f}{ends}"


def format_number(value: float) -> str:
    """Format a count, or a measured number with one decimal."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def format_prompt(prompt: str | Sequence[Mapping[str, str]]) -> str:
    """Return what a model was shown: a text as it is, a chat with the roles."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"[{turn.get('role', '?')}]\n{turn.get('content', '')}" for turn in prompt)


def flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return settings as pairs of dotted names and texts."""
    pairs: list[tuple[str, str]] = []
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            pairs += flatten(item, f"{prefix}{name}.")
            continue
        shown = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
        pairs.append((f"{prefix}{name}", NONE if item is None else shown))
    return pairs


def align_columns(table: Sequence[Sequence[str]]) -> str:
    """Return rows for a terminal, with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in table
    )
    return "\n".join(line.rstrip() for line in lines)
