# SPDX-License-Identifier: Apache-2.0
"""Write ``summary.json`` and ``steps.png`` of the PSPO-WRS quickstart, and print a table.

python -m recipes.pspo_wrs.pspo_report --run-dir outputs/pspo_quickstart
"""

from pathlib import Path
from typing import Any

import numpy as np

from prime_ext.algorithms.shaping import weibull_mode
from prime_ext.utils.files import read_json, write_json
from recipes.command_line import read_options
from recipes.figures import BLUE, GREY, ORANGE, draw_smoothed, make_figure, save
from recipes.pspo_wrs.measure import KINDS, LONG
from recipes.quickstart.run_report import (
    compare_accuracies,
    describe_run,
    format_gain,
    format_seconds,
)
from recipes.run_statistics import get_curve, run_metrics

MOST_BARS = 16


def describe_policy(result: dict[str, Any]) -> dict[str, str]:
    """Return the lines of the table for one policy, by name."""
    steps = result["steps"]
    return {
        "steps, mean": f"{steps['mean']:.2f}",
        **{f"  {kind}": f"{steps['kinds'][kind]:.2f}" for kind in KINDS},
        f"more than {LONG} steps": f"{100 * steps['long']:.1f} %",
        "cut off at the limit": f"{100 * result['cut_off']:.1f} %",
        "score, geometric mean": f"{result['score']:.3f}",
    }


def format_report(run_dir: Path, summary: dict[str, Any]) -> str:
    """Format a report on the run for readers."""
    rm = summary["step_rm"]
    before, after = (describe_policy(summary[when]) for when in ("before", "after"))
    lines = [
        "",
        (
            f"Step reward model: accuracy {rm['accuracy']:.3f} on {rm['steps']:,} steps of held-out"
            f" problems (always the commonest label: {rm['majority']:.3f}), macro-F1"
            f" {rm['macro_f1']:.3f}."
        ),
        (
            f"Policy, one response to each of {summary['n_problems']:,} held-out problems, after"
            f" {summary['training_steps']} training steps, one seed (± standard error over"
            " problems, which leaves out that of seeds); no gold answer was used in training:"
        ),
        format_gain("accuracy", summary["accuracy"]),
        f"  {'':<24}{'warm start':>16}{'PSPO-WRS':>16}",
        *(f"  {name:<24}{before[name]:>16}{after[name]:>16}" for name in before),
        format_seconds(summary),
        (
            f"Everything is in {run_dir}: summary.json, steps.png, metrics.jsonl, step_rm_honest/"
            " (the step reward model),"
        ),
        "sft/ and policy/ (before and after, Hugging Face format).",
    ]
    return "\n".join(lines)


def plot(path: Path, metrics: dict[int, dict[str, float]], summary: dict[str, Any]) -> None:
    """Draw the number of steps before and after, and steps and accuracy over the training."""
    figure, ((bars, curve, right),) = make_figure(1, 3, (15, 4.4))
    for shift, (when, color, label) in enumerate(
        (("before", GREY, "warm start"), ("after", BLUE, "after PSPO-WRS"))
    ):
        histogram = summary[when]["steps"]["histogram"]
        places = [min(int(n), MOST_BARS) + 0.42 * (shift - 0.5) for n in histogram]
        weights = [count / sum(histogram.values()) for count in histogram.values()]
        edges = np.arange(-0.5, MOST_BARS + 1) + 0.42 * (shift - 0.5)
        bars.hist(places, edges, weights=weights, rwidth=0.42, color=color, label=label)
    bars.axvline(
        weibull_mode(), color=ORANGE, linewidth=1.2, linestyle="--", label="peak of the Weibull"
    )
    bars.set(
        xlabel=f"steps of a response ({MOST_BARS}: or more)",
        ylabel="share of responses",
        title="Number of steps",
    )
    bars.set_xticks(range(0, MOST_BARS + 1, 2))
    bars.legend(frameon=False, fontsize=9.5)
    for axis, key, color, name, title in (
        (curve, "prime/steps/mean", BLUE, "steps of a response", "Steps over the training"),
        (
            right,
            "prime/accuracy/before_filter",
            ORANGE,
            "accuracy",
            "Accuracy over the training (not rewarded)",
        ),
    ):
        draw_smoothed(axis, *get_curve(metrics, key), color, width=5)
        axis.set(
            xlabel="training step",
            ylabel=f"{name}, mean of the rollouts",
            title=title,
            xlim=(0, max(metrics)),
        )
    curve.axhline(weibull_mode(), color=ORANGE, linewidth=1.2, linestyle="--")
    curve.set_ylim(bottom=0)
    right.set_ylim(0, 1)
    save(figure, path, dpi=120)


def report(run_dir: Path) -> dict[str, Any]:
    """Write picture and summary and return the summary."""
    metrics = run_metrics(run_dir)
    results = {when: read_json(run_dir / f"{when}.json") for when in ("before", "after")}
    test = read_json(run_dir / "step_rm_honest" / "results.json")["test"]
    summary = {
        "accuracy": compare_accuracies(results["before"], results["after"]),
        **{
            when: {name: result[name] for name in ("steps", "cut_off", "score")}
            for when, result in results.items()
        },
        "step_rm": {key: test[key] for key in ("steps", "accuracy", "majority", "macro_f1")},
        "n_problems": results["after"]["n"],
        "training_steps": max(metrics),
        **describe_run(run_dir),
    }
    plot(run_dir / "steps.png", metrics, summary)
    # Written last: if it exists, so does the rest.
    write_json(run_dir / "summary.json", summary)
    return summary


if __name__ == "__main__":
    options = read_options(__doc__, "run-dir")
    print(format_report(options["run_dir"], report(options["run_dir"])))
