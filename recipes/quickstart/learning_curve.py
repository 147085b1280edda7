# SPDX-License-Identifier: Apache-2.0
"""The learning curve of a run as a picture: accuracy on top, quality of the process reward model below."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from prime_ext.utils.files import read_json
from recipes.figures import BLUE, GREEN, GREY, ORANGE, draw_mean, draw_smoothed, new_figure, save
from recipes.run_statistics import PAIR_ACCURACY, series

TRAIN_ACCURACY = "prime/accuracy/before_filter"
SMOOTHING_STEPS = 10
# Stored runs of the study `comparison`, on the quickstart's task with these seeds: labels and colors by method.
COMPARISON = Path(__file__).parents[1] / "studies" / "results" / "comparison.json"
SEEDS = ("0", "1", "2")
LABELS = {"rloo": "RLOO, outcome only", "paper": "PRIME as published", "distilled": "PRIME-D"}
COLORS = {"distilled": "#6a3d9a", "rloo": "#b2182b", "paper": "#8a6d3b"}
# Runs by method; each has a "curve", lists by name, and "end", numbers by name.
StoredRuns = dict[str, list[dict[str, Any]]]


def read_stored_runs() -> StoredRuns:
    """Return the stored runs."""
    methods = read_json(COMPARISON)["methods"]
    return {name: [methods[name]["runs"][seed] for seed in SEEDS] for name in LABELS}


def validation_key(metrics: Mapping[int, Mapping[str, float]]) -> str | None:
    """The validation accuracy that verl logged, if it did."""
    keys = sorted({key for row in metrics.values() for key in row if key.startswith("val-core/")})
    return next((key for key in keys if "/acc/mean@" in key), keys[0] if keys else None)


def plot_learning_curve(
    path: Path, metrics: Mapping[int, Mapping[str, float]], before: dict, after: dict, stored: StoredRuns
) -> None:
    """Write the picture.

    Args:
        path: file to write.
        metrics: by step.
        before, after: what ``evaluate.py`` wrote for the warm-started and the trained policy.
        stored: runs of other methods, drawn in the same picture; may be empty.
    """
    figure, axes = new_figure(2, 1, (8, 7.4), sharex=True, height_ratios=[3, 2])
    top, bottom = axes[:, 0]
    last = max(metrics)
    mean = f"(mean of {SMOOTHING_STEPS} steps)"
    draw_smoothed(top, *series(metrics, TRAIN_ACCURACY), BLUE, label=f"training rollouts, before the filter {mean}")
    for method, colour in COLORS.items() if stored else ():
        # The points that all runs have are the evaluations; the others are interpolated.
        curves = [run["curve"] for run in stored[method]]
        steps = sorted(set.intersection(*(set(curve["steps"]) for curve in curves)))
        values_RS = np.array([np.interp(steps, curve["steps"], curve["accuracy"]) for curve in curves])
        name = LABELS[method] + (", the default" if method == "distilled" else "")
        label = f"{name}: {len(curves)} stored runs, held out"
        draw_mean(top, steps, values_RS, colour, label, linestyle="--", linewidth=1.6)
    if (key := validation_key(metrics)) is not None:
        validation = series(metrics, key)
        top.plot(*validation, color=GREY, marker=".", linewidth=1.2, label="validation problems, during training")
    for name, colour, marker in (("temperature_1", ORANGE, "o"), ("greedy", GREEN, "D")):
        _held_out(top, last, name, before, after, color=colour, marker=marker)
    top.set(ylim=(0, 1.02), ylabel="accuracy", title="PRIME on last-digit chains: accuracy of the policy")

    draw_smoothed(bottom, *series(metrics, PAIR_ACCURACY), BLUE, label=f"same problem, not yet trained on {mean}")
    bottom.axhline(0.5, color=GREY, linestyle="--", linewidth=1, label="guessing")
    bottom.set(ylim=(0.0, 1.02), xlim=(0, last), xlabel="PRIME step", ylabel="pair accuracy")
    bottom.set_title("Process reward model: does it score right answers above wrong ones?")
    for axis in (top, bottom):
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        axis.legend(loc="lower right", frameon=False, fontsize=9.5)
    save(figure, path, dpi=150)


def _held_out(axis: Axes, last: int, name: str, before: dict, after: dict, **style: str) -> None:
    """Accuracy on the held-out problems at both ends, with its number beside it."""
    accuracies = [result[name]["accuracy"] for result in (before, after)]
    errors = [2 * result[name]["standard_error"] for result in (before, after)]
    label = f"{after['n_problems']:,} held-out problems, {name.replace('_', ' ')} (± 2 s.e.)"
    options = {"markersize": 7, "linestyle": "none", "capsize": 4, "zorder": 5, "clip_on": False}
    axis.errorbar([0, last], accuracies, errors, label=label, **options, **style)
    for x, accuracy in zip((0, last), accuracies, strict=True):
        # To the right of the marker; at the start below the rising curves, at the end outside the axes.
        offset = (9, -8 if x == 0 and name == "temperature_1" else 0)
        axis.annotate(
            f"{100 * accuracy:.1f} %", (x, accuracy), xytext=offset, textcoords="offset points", va="center",
            color=style["color"], fontweight="bold",
        )  # fmt: skip
