# SPDX-License-Identifier: Apache-2.0
"""The learning curve of a run as a picture: accuracy on top, quality of the process reward model below."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from prime_ext.utils.files import atomic_path
from recipes.run_statistics import mean_and_error

TRAIN_ACCURACY = "prime/accuracy/before_filter"
PAIR_ACCURACY = "prm/pair_accuracy/before_update"
VALIDATION_PREFIX = "val-core/"
SMOOTHING_STEPS = 10

BLUE, ORANGE, GREEN, GREY = "#2166ac", "#d66014", "#1b7837", "#5b6572"
# What recipes/compare_variants compares.
METHODS = {"rloo": "RLOO, outcome only", "paper": "PRIME as published", "distilled": "PRIME-D"}
BASELINE = "rloo"
# Methods whose kept runs are drawn behind the run, see recipes/compare_variants.
BEHIND = {
    "distilled": ("PRIME-D, the default", "#6a3d9a"),
    "rloo": (METHODS["rloo"], "#b2182b"),
    "paper": (METHODS["paper"], "#8a6d3b"),
}


def series(metrics: list[dict], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of one metric, at the steps at which it was logged."""
    points = [(row["step"], row["data"][key]) for row in metrics if key in row["data"]]
    return np.array([step for step, _ in points]), np.array([value for _, value in points], dtype=float)


def moving_average(values: np.ndarray, width: int = SMOOTHING_STEPS) -> np.ndarray:
    """Mean of the last ``width`` values (of fewer at the beginning)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    last = np.arange(1, len(values) + 1)
    first = np.maximum(0, last - width)
    return (total[last] - total[first]) / (last - first)


def validation_key(metrics: list[dict]) -> str | None:
    """The validation accuracy that verl logged, if it did."""
    keys = sorted({key for row in metrics for key in row["data"] if key.startswith(VALIDATION_PREFIX)})
    return next((key for key in keys if "/acc/mean@" in key), keys[0] if keys else None)


def _curve(axis: plt.Axes, steps: np.ndarray, values: np.ndarray, colour: str, label: str) -> None:
    axis.plot(steps, values, color=colour, alpha=0.25, linewidth=1)
    axis.plot(steps, moving_average(values), color=colour, linewidth=2.2, label=label)


def _kept_runs(axis: plt.Axes, comparison: dict) -> None:
    """Mean over seeds of the accuracy on held-out problems at temperature 1, with its standard error."""
    for method, (label, colour) in BEHIND.items():
        runs = list(comparison["runs"][method].values())
        points = [mean_and_error(values) for values in zip(*(r["accuracy_temperature_1"] for r in runs), strict=True)]
        mean, error = (np.array([point[key] or 0.0 for point in points]) for key in ("mean", "standard_error"))
        steps = comparison["steps"]
        axis.plot(
            steps, mean, color=colour, linestyle="--", linewidth=1.6, label=f"{label}: {len(runs)} kept runs, held out"
        )
        axis.fill_between(steps, mean - error, mean + error, color=colour, alpha=0.15, linewidth=0)


def plot_learning_curve(
    path: str | Path, metrics: list[dict], before: dict, after: dict, comparison: dict | None = None
) -> None:
    """Write the picture, atomically.

    Args:
        path: file to write; the ending decides the format.
        metrics: rows ``{"step": ..., "data": {...}}`` as verl's file logger writes them.
        before, after: what ``evaluate.py`` wrote for the warm-started and the trained policy.
        comparison: kept runs of other methods on the same task, as ``recipes.compare_variants`` writes them.
    """
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(8, 7.4), sharex=True, height_ratios=[3, 2], layout="constrained"
    )
    last = metrics[-1]["step"]
    steps, values = series(metrics, TRAIN_ACCURACY)
    _curve(top, steps, values, BLUE, f"training rollouts, before the filter (mean of {SMOOTHING_STEPS} steps)")
    if comparison is not None:
        _kept_runs(top, comparison)
    key = validation_key(metrics)
    if key is not None:
        steps, values = series(metrics, key)
        top.plot(steps, values, color=GREY, marker=".", linewidth=1.2, label="validation problems, during training")
    for name, colour, marker, label in (
        ("temperature_1", ORANGE, "o", "temperature 1"),
        ("greedy", GREEN, "D", "greedy"),
    ):
        accuracies = np.array([result[name]["accuracy"] for result in (before, after)])
        errors = 2 * np.array([result[name]["standard_error"] for result in (before, after)])
        top.errorbar(
            [0, last],
            accuracies,
            errors,
            color=colour,
            marker=marker,
            markersize=7,
            linestyle="none",
            capsize=4,
            label=f"{after['n_problems']:,} held-out problems, {label} (± 2 s.e.)",
            zorder=5,
            clip_on=False,
        )
        for x, accuracy in ((0, accuracies[0]), (last, accuracies[1])):
            # To the right of the marker; at the start below the rising curves, at the end outside the axes.
            top.annotate(
                f"{100 * accuracy:.1f} %",
                (x, accuracy),
                xytext=(9, -8 if x == 0 and name == "temperature_1" else 0),
                textcoords="offset points",
                va="center",
                color=colour,
                fontweight="bold",
            )
    top.set(ylim=(0, 1.02), ylabel="accuracy", title="PRIME on last-digit chains: accuracy of the policy")
    top.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    top.legend(loc="lower right", frameon=False, fontsize=9.5)

    steps, values = series(metrics, PAIR_ACCURACY)
    _curve(bottom, steps, values, BLUE, f"same problem, not yet trained on (mean of {SMOOTHING_STEPS} steps)")
    bottom.axhline(0.5, color=GREY, linestyle="--", linewidth=1, label="guessing")
    bottom.set(ylim=(0.0, 1.02), xlim=(0, last), xlabel="PRIME step", ylabel="pair accuracy")
    bottom.set_title("Process reward model: does it score right answers above wrong ones?")
    bottom.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    bottom.legend(loc="lower right", frameon=False, fontsize=9.5)
    for axis in (top, bottom):
        axis.grid(alpha=0.25)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)
    plt.close(figure)
