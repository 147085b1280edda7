# SPDX-License-Identifier: Apache-2.0
"""The reports of the quickstarts: the summary and the learning curve."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from omegaconf import OmegaConf

from prime_ext.generate.prm_description import versions
from prime_ext.methods.changed_keys import variant_line
from prime_ext.methods.variants import VARIANTS
from prime_ext.utils.files import read_json, write_json, write_json_lines
from recipes.figures import BLUE, GREEN, GREY, ORANGE, draw_smoothed, make_figure, save
from recipes.quickstart.evaluate import RewardedResponse, load_model, load_problems, step_statistics
from recipes.run_statistics import (
    PAIR_ACCURACY,
    get_curve,
    get_paired_error,
    read_seconds,
    read_settings,
    run_metrics,
)

TRAIN_ACCURACY = "prime/accuracy/before_filter"
DECODINGS = (("temperature_1", ORANGE, "o"), ("greedy", GREEN, "D"))
# Folders of the policies whose responses are scored.
POLICIES = {"trained policy": "policy", "warm-started policy": "sft"}


class ReportedRun(NamedTuple):
    """A finished run: metrics by step, evaluations of the policy before and after, and knobs."""

    folder: Path
    metrics: dict[int, dict[str, float]]
    before: dict[str, Any]
    after: dict[str, Any]
    settings: dict[str, str]


def read_run(folder: Path) -> ReportedRun:
    """Read a run.

    ``metrics.jsonl`` is written again without the repetitions of a resumed run; the parts of
    earlier starts stay.
    """
    metrics = run_metrics(folder)
    write_json_lines(
        folder / "metrics.jsonl", ({"step": step, "data": row} for step, row in metrics.items())
    )
    before, after = (read_json(folder / f"evaluation_{when}.json") for when in ("before", "after"))
    return ReportedRun(folder, metrics, before, after, read_settings(folder / "settings.txt"))


def compare_accuracies(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the accuracies of two evaluations of the same problems, with standard errors."""
    return {
        "accuracy_before": before["accuracy"],
        "accuracy_after": after["accuracy"],
        "gain": after["accuracy"] - before["accuracy"],
        "standard_error": {
            "before": before["standard_error"],
            "after": after["standard_error"],
            "difference": get_paired_error(before["outcomes"], after["outcomes"]),
        },
    }


def format_gain(name: str, compared: Mapping[str, Any]) -> str:
    """Format the result of :func:`compare_accuracies` as one line."""
    error = compared["standard_error"]
    return (
        f"  {name:<14}  {100 * compared['accuracy_before']:5.1f} ± {100 * error['before']:.1f} % "
        f" ->  {100 * compared['accuracy_after']:5.1f} ± {100 * error['after']:.1f} %   gain"
        f" {100 * compared['gain']:+.1f} ± {100 * error['difference']:.1f} points"
    )


def describe_run(folder: Path) -> dict[str, Any]:
    """Return the seconds, settings and versions of a run, for its summary."""
    return {
        "seconds": read_seconds(folder / "seconds.tsv"),
        "settings": read_settings(folder / "settings.txt"),
        "versions": versions(),
    }


def describe_results(run_dir: Path, summary: Mapping[str, Any], lines: Sequence[str]) -> str:
    """Format a report on a run of PRIME for readers, with some lines about its task."""
    auc = {
        policy: [format_number(row[name], ".2f") for name in ("outcome_auc", "auc")]
        for policy, row in summary["process_rewards"].items()
    }
    return "\n".join(
        [
            "",
            (
                f"Accuracy on {summary['n_problems']:,} held-out problems after {summary['steps']}"
                f" steps of {summary['method']}, variant {summary['variant']}, one seed (±"
                " standard error over"
                " problems, which leaves out that of seeds):"
            ),
            format_gain("temperature 1", summary),
            format_gain("greedy", summary["greedy"]),
            *lines,
            (
                "The PRM ranks right above wrong answers, and right above wrong steps, with"
                " probability (0.5 is chance):"
            ),
            *(
                f"  {answers}, {steps} on responses of the {policy}"
                for policy, (answers, steps) in auc.items()
            ),
            "No label of a step was ever shown to it.",
            format_seconds(summary),
            (
                f"Everything is in {run_dir}: summary.json, metrics.jsonl, learning_curve.png,"
                " transcripts.html"
            ),
            (
                "(why did this response get its reward? open it in a browser), policy/ and prm/"
                " (Hugging Face format), sft/"
            ),
            "(the warm start, the reference of these scores), checkpoints/ and tensorboard/.",
        ]
    )


def format_seconds(summary: Mapping[str, Any]) -> str:
    """Format the seconds of the phases as one line."""
    return "Seconds: " + ", ".join(
        f"{phase} {value:.0f}" for phase, value in summary["seconds"].items()
    )


def report_run(
    run: ReportedRun,
    title: str,
    score: Callable[..., list[RewardedResponse]],
    n_problems: int,
    draw_more: Callable[[Axes, Axes], None],
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """Write ``learning_curve.png`` and ``summary.json`` of a run, and return the summary.

    The curve's ``title`` comes after the name of the method.

    ``score`` returns the scored responses of a policy to ``n_problems`` held-out problems, given
    its folder, its name, the problems, the PRM, the reference, the tokenizer and beta. The summary
    has ``more`` keys; its accuracies at the top are at temperature 1.
    """
    config = OmegaConf.load(run.folder / "hydra" / ".hydra" / "config.yaml")
    method = VARIANTS[config.prime.variant].title
    plot_learning_curve(run, f"{method} {title}", draw_more)
    reference, tokenizer = load_model(run.folder / "sft")
    prm, _ = load_model(run.folder / "prm")
    problems = load_problems(run.folder / "data" / "test.parquet", n_problems)
    beta = float(run.settings["BETA"])
    statistics = {}
    for name, folder in POLICIES.items():
        scored = score(run.folder / folder, name, problems, prm, reference, tokenizer, beta)
        statistics[name] = step_statistics(scored)
    summary = {
        **compare_accuracies(run.before["temperature_1"], run.after["temperature_1"]),
        "greedy": compare_accuracies(run.before["greedy"], run.after["greedy"]),
        "method": method,
        "variant": variant_line(config),
        "n_problems": run.after["n_problems"],
        "steps": max(run.metrics),
        "seed": int(run.settings["SEED"]),
        **describe_run(run.folder),
        "process_rewards": statistics,
        **more,
    }
    # Written last: if it exists, so does the rest.
    write_json(run.folder / "summary.json", summary)
    return summary


def plot_learning_curve(
    run: ReportedRun, title: str, draw_more: Callable[[Axes, Axes], None]
) -> None:
    """Write ``learning_curve.png``: accuracy on top, the PRM below, and ``draw_more`` in both."""
    figure, axes = make_figure(2, 1, (8, 7.4), sharex=True, height_ratios=[3, 2])
    top, bottom = axes[:, 0]
    last = max(run.metrics)
    label = "training rollouts, before the filter (mean of 10 steps)"
    draw_smoothed(top, *get_curve(run.metrics, TRAIN_ACCURACY), BLUE, label=label)
    for name, shade, marker in DECODINGS:
        accuracies = [result[name]["accuracy"] for result in (run.before, run.after)]
        errors = [2 * result[name]["standard_error"] for result in (run.before, run.after)]
        label = (
            f"{run.after['n_problems']:,} held-out problems, {name.replace('_', ' ')} (± 2 s.e.)"
        )
        style = {
            "color": shade,
            "marker": marker,
            "markersize": 7,
            "linestyle": "none",
            "capsize": 4,
            "zorder": 5,
        }
        top.errorbar([0, last], accuracies, errors, label=label, clip_on=False, **style)
        for x, accuracy in zip((0, last), accuracies, strict=True):
            # To the right of the marker; at the start below the rising curves, at the end outside
            # the axes.
            offset = (9, -8 if x == 0 and name == "temperature_1" else 0)
            style = {
                "textcoords": "offset points",
                "va": "center",
                "color": shade,
                "fontweight": "bold",
            }
            top.annotate(f"{100 * accuracy:.1f} %", (x, accuracy), xytext=offset, **style)
    if PAIR_ACCURACY in run.metrics[last]:
        label = "PRM: pairs of the same problem in the right order (mean of 10 steps)"
        draw_smoothed(bottom, *get_curve(run.metrics, PAIR_ACCURACY), BLUE, label=label)
    draw_more(top, bottom)
    bottom.axhline(0.5, color=GREY, linestyle="--", linewidth=1)
    top.set(ylim=(0, 1.02), ylabel="accuracy", title=title)
    bottom.set(ylim=(0, 1.02), xlim=(0, last), xlabel="step", ylabel="share")
    for axis in (top, bottom):
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        axis.legend(loc="lower right", frameon=False, fontsize=9.5)
    save(figure, run.folder / "learning_curve.png", dpi=150)


def format_number(value: float | None, form: str = ".3f") -> str:
    """Format a number, or a dash where there is none."""
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else format(value, form)
