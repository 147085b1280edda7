# SPDX-License-Identifier: Apache-2.0
"""Plots of the reports as SVG inside the page: they follow its colours, so that they are readable in the dark too."""

import functools
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

from eval.report_text import one_line

# Colours that matplotlib draws with, and the names of the page's colours that they stand for.
_INK, _QUIET, _LINE = "#010101", "#020202", "#030303"
_BLUE, _GREEN, _RED = "#040404", "#050505", "#060606"
_NAMES = {_INK: "ink", _QUIET: "quiet", _LINE: "line", _BLUE: "blue", _GREEN: "green", _RED: "red"}
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "prime_ext",
    "font.family": "sans-serif",
    "font.size": 8.5,
    "text.parse_math": False,
    "text.color": _INK,
    "axes.labelcolor": _QUIET,
    "axes.edgecolor": _LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "xtick.labelcolor": _QUIET,
    "ytick.labelcolor": _INK,
    "grid.color": _LINE,
    "legend.frameon": False,
}
# Inches; narrow, so that the letters remain readable on a phone.
_WIDTH = 5.0
# Rows of a plot above which it would be no plot any more; tables have all.
MOST_ROWS = 60
_Arguments = ParamSpec("_Arguments")


def _styled(draw: Callable[_Arguments, str]) -> Callable[_Arguments, str]:
    """Draw without a display and in our style, and leave matplotlib's settings as they were."""

    @functools.wraps(draw)
    def drawn(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> str:
        import matplotlib

        matplotlib.use("Agg")
        with matplotlib.rc_context(_STYLE):
            return draw(*arguments, **named)

    return drawn


@_styled
def intervals(
    rows: Sequence[tuple[str, Mapping[str, Any]]],
    label: str,
    marks: Mapping[str, Sequence[float]] | None = None,
    differences: bool = False,
) -> str:
    """A point with its 95 % interval for each row.

    Args:
        rows: names and estimates, fractions.
        label: of the axis.
        marks: other values by row, drawn as ticks.
        differences: the axis goes around 0 instead of from 0 to 100.
    """
    rows = rows[:MOST_ROWS]
    figure, axes = _figure(0.75 + 0.27 * len(rows))
    for place, (name, own) in enumerate(rows):
        for value in (marks or {}).get(name, ()):
            axes.plot([100 * value] * 2, [place - 0.28, place + 0.28], color=_QUIET, linewidth=1, alpha=0.7)
        if own["low"] is not None:
            axes.plot([100 * own["low"], 100 * own["high"]], [place] * 2, color=_BLUE, linewidth=2.2, alpha=0.75)
        axes.plot(100 * own["value"], place, "o", color=_BLUE, markersize=5)
    axes.set_yticks(range(len(rows)), [one_line(name, 28) for name, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    if differences:
        axes.axvline(0, color=_QUIET, linewidth=0.8)
    else:
        axes.set_xlim(-1, 101)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", linewidth=0.6)
    axes.set_xlabel(label)
    return _svg(figure, label)


@_styled
def curves(lines: Mapping[str, Sequence[tuple[int, Mapping[str, Any]]]], label: str) -> str:
    """Scores over k with their 95 % intervals, by the name of the curve."""
    figure, axes = _figure(2.9)
    colours = (_BLUE, _GREEN, _RED)
    ticks = sorted({k for points in lines.values() for k, _ in points})
    for colour, (name, points) in zip(colours, lines.items(), strict=False):
        ks = [k for k, _ in points]
        axes.plot(ks, [100 * own["value"] for _, own in points], "o-", color=colour, markersize=4, label=name)
        known = [(k, own) for k, own in points if own["low"] is not None]
        low, high = [100 * own["low"] for _, own in known], [100 * own["high"] for _, own in known]
        axes.fill_between([k for k, _ in known], low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.minorticks_off()
    axes.set_xlabel("k")
    axes.set_ylabel(label)
    axes.grid(axis="y", linewidth=0.6)
    figure.legend(loc="outside upper right", ncols=3)
    return _svg(figure, f"{label} over k")


@_styled
def lengths(by_outcome: Mapping[str, Sequence[int]], longest: int) -> str:
    """Distribution of the response length in tokens, right and wrong responses apart.

    Args:
        by_outcome: lengths of ``right`` and ``wrong`` responses.
        longest: length at which responses are cut off.
    """
    import numpy as np

    figure, axes = _figure(2.7)
    most = max((max(own) for own in by_outcome.values() if own), default=1)
    edges = np.linspace(0, max(most, 1) * 1.0001, 33)
    for (name, own), colour in zip(by_outcome.items(), (_GREEN, _RED), strict=True):
        if own:
            counts, _ = np.histogram(own, edges)
            axes.stairs(counts, edges, color=colour, fill=True, alpha=0.28)
            axes.stairs(counts, edges, color=colour, linewidth=1.3, label=f"{name} ({len(own):,})")
    if most >= 0.8 * longest:
        axes.axvline(longest, color=_QUIET, linewidth=1, linestyle="--", label=f"longest, {longest:,}")
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens")
    axes.set_ylabel("responses")
    axes.yaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside upper right", ncols=3)
    return _svg(figure, "distribution of response lengths")


def _figure(height: float) -> Any:
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(_WIDTH, height), layout="constrained")


def _svg(figure: Any, title: str) -> str:
    """The picture as an element that fits its place, with the page's colours."""
    import matplotlib.pyplot as plt

    target = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(target, format="svg", transparent=True, metadata=nothing)
    plt.close(figure)
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Several pictures on a page: only what is referred to keeps its name, and equal names are equal shapes.
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"|(<svg [^>]*?)height="[^"]*" width="[^"]*"', r"\1\2", text)
    text = text.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
    for colour, name in _NAMES.items():
        text = text.replace(colour, f"var(--{name})")
    return text
