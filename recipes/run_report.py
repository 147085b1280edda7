# SPDX-License-Identifier: Apache-2.0
"""What the reports of the quickstart and of the agent share: the summary, the learning curve, the transcripts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from omegaconf import OmegaConf

from prime_ext.config.variant import variant_line
from prime_ext.utils.files import read_json, write_json_lines
from prime_ext.utils.report_page import Page
from recipes.figures import BLUE, GREEN, GREY, ORANGE, draw_smoothed, new_figure, save
from recipes.run_statistics import (
    paired_standard_error,
    read_seconds,
    read_settings,
    run_metrics,
    series,
    versions,
)

TRAIN_ACCURACY = "prime/accuracy/before_filter"
SMOOTHED = "(mean of 10 steps)"
DECODINGS = (("temperature_1", ORANGE, "o"), ("greedy", GREEN, "D"))


def read_run(run_dir: Path) -> tuple[dict[int, dict[str, float]], dict[str, Any], dict[str, Any]]:
    """Read the metrics of a run by step, and its evaluations before and after.

    ``metrics.jsonl`` is written again without the repetitions of a resumed run; the parts of earlier starts stay.
    """
    metrics = run_metrics(run_dir)
    write_json_lines(run_dir / "metrics.jsonl", ({"step": step, "data": row} for step, row in metrics.items()))
    before, after = (read_json(run_dir / f"evaluation_{when}.json") for when in ("before", "after"))
    return metrics, before, after


def gain(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the accuracies of one way of decoding, with standard errors."""
    first, second = before[name], after[name]
    return {
        "accuracy_before": first["accuracy"],
        "accuracy_after": second["accuracy"],
        "gain": second["accuracy"] - first["accuracy"],
        "standard_error": {
            "before": first["standard_error"],
            "after": second["standard_error"],
            "difference": paired_standard_error(first["outcomes"], second["outcomes"]),
        },
    }


def write_gain(name: str, of: Mapping[str, Any]) -> str:
    """Write what :func:`gain` returns on one line."""
    error = of["standard_error"]
    return (
        f"  {name:<14}  {100 * of['accuracy_before']:5.1f} ± {100 * error['before']:.1f} %  ->  "
        f"{100 * of['accuracy_after']:5.1f} ± {100 * error['after']:.1f} %   "
        f"gain {100 * of['gain']:+.1f} ± {100 * error['difference']:.1f} points"
    )


def describe_run(run_dir: Path, steps: int, after: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a summary says of the run itself."""
    return {
        "variant": variant_line(OmegaConf.load(run_dir / "hydra" / ".hydra" / "config.yaml")),
        "n_problems": after["n_problems"],
        "steps": steps,
        "seconds": read_seconds(run_dir / "seconds.tsv"),
        "settings": read_settings(run_dir / "settings.txt"),
        "versions": versions(),
    }


def write_seconds(summary: Mapping[str, Any]) -> str:
    """Write the seconds of the phases on one line."""
    return "Seconds: " + ", ".join(f"{phase} {value:.0f}" for phase, value in summary["seconds"].items())


def plot_learning_curve(
    path: Path,
    title: str,
    metrics: Mapping[int, Mapping[str, float]],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    draw_more: Callable[[Axes, Axes], None],
) -> None:
    """Write a picture: accuracy on top, and what else there is below.

    Args:
        path: file to write.
        title: of the picture.
        metrics: by step.
        before, after: evaluations of the warm-started and the trained policy.
        draw_more: draws into both panels.
    """
    figure, axes = new_figure(2, 1, (8, 7.4), sharex=True, height_ratios=[3, 2])
    top, bottom = axes[:, 0]
    last = max(metrics)
    draw_smoothed(top, *series(metrics, TRAIN_ACCURACY), BLUE, label=f"training rollouts, before the filter {SMOOTHED}")
    for name, shade, marker in DECODINGS:
        accuracies = [result[name]["accuracy"] for result in (before, after)]
        errors = [2 * result[name]["standard_error"] for result in (before, after)]
        label = f"{after['n_problems']:,} held-out problems, {name.replace('_', ' ')} (± 2 s.e.)"
        style = {"color": shade, "marker": marker, "markersize": 7, "linestyle": "none", "capsize": 4, "zorder": 5}
        top.errorbar([0, last], accuracies, errors, label=label, clip_on=False, **style)
        for x, accuracy in zip((0, last), accuracies, strict=True):
            # To the right of the marker; at the start below the rising curves, at the end outside the axes.
            offset = (9, -8 if x == 0 and name == "temperature_1" else 0)
            top.annotate(
                f"{100 * accuracy:.1f} %", (x, accuracy), xytext=offset, textcoords="offset points", va="center",
                color=shade, fontweight="bold",
            )  # fmt: skip
    draw_more(top, bottom)
    bottom.axhline(0.5, color=GREY, linestyle="--", linewidth=1)
    top.set(ylim=(0, 1.02), ylabel="accuracy", title=title)
    bottom.set(ylim=(0, 1.02), xlim=(0, last), xlabel="step")
    for axis in (top, bottom):
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        axis.legend(loc="lower right", frameon=False, fontsize=9.5)
    save(figure, path, dpi=150)


def strongest(rewards: Iterable[float], quantile: float) -> float:
    """Return the size of a reward that is shown in full color: one outlier hides nothing."""
    sizes = [abs(reward) for reward in rewards]
    return max(float(np.quantile(sizes, quantile)), 1e-6) if sizes else 1.0


def begin_transcripts(title: str, texts: Sequence[str], scale: float) -> Page:
    """Begin a page of transcripts.

    Args:
        title: of the page.
        texts: paragraphs that say what is shown.
        scale: reward in full color.
    """
    page = Page(title)
    for text in texts:
        page.text(text)
    page.text(
        f"Blue is rewarded, orange punished; full color is {scale:.2f} and more. Point at a piece for its numbers."
    )
    return page


def write_number(value: float | None, form: str) -> str:
    """Write a number, or a dash where there is none."""
    return "–" if value is None else format(value, form)
