# SPDX-License-Identifier: Apache-2.0
"""Plots of the reports as SVG inside the page: they follow its colours, so that they are readable in the dark too."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eval.page import one_line

# Colours that matplotlib draws with, and the names of the page's colours that they stand for.
_INK, _QUIET, _LINE, _BLUE, _GREEN, _RED = (f"#0{n}0{n}0{n}" for n in range(1, 7))
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
    "ytick.labelcolor": _INK,
    "grid.color": _LINE,
    "legend.frameon": False,
}
# Rows of a plot above which it would be no plot any more; tables have all.
MOST_ROWS = 60


def intervals(
    rows: Sequence[tuple[str, Mapping[str, Any]]],
    label: str,
    marks: Mapping[str, Sequence[float]] | None = None,
    differences: bool = False,
) -> str:
    """A point with its 95 % interval for each row.

    Estimates are fractions; ``marks`` are other values by row, drawn as ticks; of differences the axis goes around 0.
    """
    rows = rows[:MOST_ROWS]

    def paint(axes: Any) -> None:
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
        axes.grid(axis="x", linewidth=0.6)
        axes.set_xlabel(label)

    return _drawn(paint, 0.75 + 0.27 * len(rows), label)


def curves(lines: Mapping[str, Sequence[tuple[int, Mapping[str, Any]]]], label: str) -> str:
    """Scores over k with their 95 % intervals, by the name of the curve."""

    def paint(axes: Any) -> None:
        for colour, (name, points) in zip((_BLUE, _GREEN), lines.items(), strict=False):
            axes.plot(
                *zip(*((k, 100 * own["value"]) for k, own in points), strict=True), "o-", color=colour, label=name
            )
            known = [(k, 100 * own["low"], 100 * own["high"]) for k, own in points if own["low"] is not None]
            if known:
                axes.fill_between(*zip(*known, strict=True), color=colour, alpha=0.15, linewidth=0)
        ticks = sorted({k for points in lines.values() for k, _ in points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(k) for k in ticks])
        axes.minorticks_off()
        axes.set_xlabel("k")
        axes.set_ylabel(label)
        axes.grid(axis="y", linewidth=0.6)

    return _drawn(paint, 2.9, f"{label} over k", legend=True)


def lengths(by_outcome: Mapping[str, Sequence[int]], longest: int) -> str:
    """Distribution of the response length in tokens, right and wrong responses apart.

    ``longest`` is the length at which responses are cut off.
    """
    most = max((max(own) for own in by_outcome.values() if own), default=1)

    def paint(axes: Any) -> None:
        for (name, own), colour in zip(by_outcome.items(), (_GREEN, _RED), strict=True):
            if own:
                shape = {"bins": 32, "range": (0, most), "color": colour}
                axes.hist(own, histtype="stepfilled", alpha=0.28, **shape)
                axes.hist(own, histtype="step", linewidth=1.3, label=f"{name} ({len(own):,})", **shape)
        if most >= 0.8 * longest:
            axes.axvline(longest, color=_QUIET, linewidth=1, linestyle="--", label=f"longest, {longest:,}")
        axes.set_xlim(left=0)
        axes.set_xlabel("tokens")
        axes.set_ylabel("responses")

    return _drawn(paint, 2.7, "distribution of response lengths", legend=True)


def _drawn(paint: Callable[[Any], None], height: float, title: str, legend: bool = False) -> str:
    """The picture as an element that fits its place, with the page's colours."""
    import matplotlib
    from matplotlib.figure import Figure

    target = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        # Inches; narrow, so that the letters remain readable on a phone.
        figure = Figure(figsize=(5.0, height), layout="constrained")
        paint(figure.subplots())
        if legend:
            figure.legend(loc="outside upper right", ncols=3)
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    text = target.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    # Several pictures on a page: only what is referred to keeps its name, and equal names are equal shapes.
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    head, _, rest = text.partition(">")
    head = re.sub(r' (width|height)="[^"]*"', "", head).replace("<svg", f'<svg role="img" aria-label="{title}"')
    text = f"{head}>{rest}"
    for colour, name in _NAMES.items():
        text = text.replace(colour, f"var(--{name})")
    return text
