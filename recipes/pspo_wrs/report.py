# SPDX-License-Identifier: Apache-2.0
"""What came out of the PSPO-WRS quickstart: ``summary.json``, ``steps.png`` and a table in the terminal.

    python -m recipes.pspo_wrs.report --run-dir outputs/pspo_quickstart

Reads from the run folder: ``before.json`` and ``after.json`` (``measure.py``), ``metrics.jsonl`` (verl's file logger),
``step_rm_honest/results.json``, ``settings.txt`` and ``seconds.tsv``.
"""

from pathlib import Path

from prime_ext.algorithms.shaping import weibull_mode
from prime_ext.utils.files import read_json, write_json
from recipes.figures import BLUE, GREY, ORANGE, draw_smoothed, new_figure, save
from recipes.pspo_wrs.measure import KINDS, LONG
from recipes.run_report import write_seconds
from recipes.run_statistics import (
    paired_standard_error,
    read_seconds,
    read_settings,
    run_folder,
    run_metrics,
    series,
    versions,
)

MOST_BARS = 16


def share(steps: dict, low: int, high: int | None = None) -> float:
    """Share of the responses with so many steps, bounds included."""
    histogram = {int(n): count for n, count in steps["histogram"].items()}
    inside = sum(count for n, count in histogram.items() if low <= n and (high is None or n <= high))
    return inside / sum(histogram.values())


def table(summary: dict) -> str:
    """Before and after, one line per number."""
    before, after = summary["steps"]["before"], summary["steps"]["after"]
    accuracy, error = summary["accuracy"], summary["accuracy"]["standard_error"]
    scores = {when: next(iter(summary["scores"][when].values())) for when in ("before", "after")}

    def percent(value: float) -> str:
        return f"{100 * value:.1f} %"

    rows = [
        (
            "accuracy",
            f"{100 * accuracy['before']:.1f} ± {100 * error['before']:.1f} %",
            f"{100 * accuracy['after']:.1f} ± {100 * error['after']:.1f} %",
        ),
        ("steps, mean", f"{before['mean']:.2f}", f"{after['mean']:.2f}"),
        *((f"  {kind}", f"{before['kinds'][kind]:.2f}", f"{after['kinds'][kind]:.2f}") for kind in KINDS),
        ("at most 2 steps", percent(share(before, 0, 2)), percent(share(after, 0, 2))),
        ("3 to 5 steps", percent(share(before, 3, 5)), percent(share(after, 3, 5))),
        (f"6 to {LONG} steps", percent(share(before, 6, LONG)), percent(share(after, 6, LONG))),
        (f"more than {LONG} steps", percent(before["long"]), percent(after["long"])),
        ("cut off at the limit", percent(summary["cut_off"]["before"]), percent(summary["cut_off"]["after"])),
        ("score, geometric mean", f"{scores['before']['geometric']:.3f}", f"{scores['after']['geometric']:.3f}"),
    ]
    lines = [f"  {'':<24}{'warm start':>16}{'PSPO-WRS':>16}"]
    return "\n".join([*lines, *(f"  {name:<24}{first:>16}{second:>16}" for name, first, second in rows)])


def text(run_dir: Path, summary: dict) -> str:
    """What a reader should know about the run."""
    rm, accuracy = summary["step_rm"], summary["accuracy"]
    lines = [
        "",
        f"Step reward model: accuracy {rm['accuracy']:.3f} on {rm['steps']:,} steps of held-out problems "
        f"(always the commonest label: {rm['majority']:.3f}), macro-F1 {rm['macro_f1']:.3f}.",
        f"Policy, one response to each of {summary['n_problems']:,} held-out problems, after "
        f"{summary['training_steps']} training steps:",
        table(summary),
        f"  gain in accuracy {100 * accuracy['gain']:+.1f} ± {100 * accuracy['standard_error']['difference']:.1f} "
        "points; no gold answer was used in training.",
        write_seconds(summary),
        f"Everything is in {run_dir}:",
        "  summary.json        these numbers, with settings and versions",
        "  steps.png           numbers of steps before and after, and over the training",
        "  step_rm_honest/     the step reward model and its metrics",
        "  sft/, policy/       the policy before and after, Hugging Face format",
        "  responses/          every response of the training with its steps, scores and reward, JSON lines",
        "  metrics.jsonl       every metric of every step",
    ]
    return "\n".join(lines)


def plot(path: Path, metrics: dict[int, dict[str, float]], summary: dict) -> None:
    """Histogram of the number of steps before and after; mean number of steps and accuracy over the training."""
    figure, ((bars, curve, right),) = new_figure(1, 3, (15, 4.4))
    places = range(MOST_BARS + 1)
    for shift, (when, colour, label) in enumerate((("before", GREY, "warm start"), ("after", BLUE, "after PSPO-WRS"))):
        steps = summary["steps"][when]
        heights = [share(steps, n, None if n == MOST_BARS else n) for n in places]
        bars.bar([n + 0.42 * (shift - 0.5) for n in places], heights, width=0.42, color=colour, label=label)
    bars.axvline(weibull_mode(), color=ORANGE, linewidth=1.2, linestyle="--", label="peak of the Weibull")
    bars.set(xlabel=f"steps of a response ({MOST_BARS}: or more)", ylabel="share of responses", title="Number of steps")
    bars.set_xticks(range(0, MOST_BARS + 1, 2))
    bars.legend(frameon=False, fontsize=9.5)
    for axis, key, colour, name, title in (
        (curve, "pspo/n_steps/mean", BLUE, "steps of a response", "Steps over the training"),
        (right, "pspo/acc", ORANGE, "accuracy", "Accuracy over the training (not rewarded)"),
    ):
        draw_smoothed(axis, *series(metrics, key), colour, width=5)
        axis.set(xlabel="training step", ylabel=f"{name}, mean of the rollouts", title=title, xlim=(0, max(metrics)))
    curve.axhline(weibull_mode(), color=ORANGE, linewidth=1.2, linestyle="--")
    curve.set_ylim(bottom=0)
    right.set_ylim(0, 1)
    save(figure, path, dpi=120)


def report(run_dir: Path) -> dict:
    """Write picture and summary; returns the summary."""
    metrics = run_metrics(run_dir)
    before, after = read_json(run_dir / "before.json"), read_json(run_dir / "after.json")
    test = read_json(run_dir / "step_rm_honest" / "results.json")["test"]
    error = {"before": before["standard_error"], "after": after["standard_error"]}
    error["difference"] = paired_standard_error(before["outcomes"], after["outcomes"])
    gain = after["accuracy"] - before["accuracy"]
    summary = {
        "accuracy": {"before": before["accuracy"], "after": after["accuracy"], "gain": gain, "standard_error": error},
        **{name: {"before": before[name], "after": after[name]} for name in ("steps", "cut_off", "scores")},
        "step_rm": {key: test[key] for key in ("steps", "accuracy", "majority", "macro_f1")},
        "n_problems": after["n"],
        "training_steps": max(metrics),
        "seconds": read_seconds(run_dir / "seconds.tsv"),
        "versions": versions(),
        "settings": read_settings(run_dir / "settings.txt"),
    }
    plot(run_dir / "steps.png", metrics, summary)
    # Written last: whoever finds it finds the rest.
    write_json(run_dir / "summary.json", summary)
    return summary


def main() -> None:
    run_dir = run_folder(__doc__)
    print(text(run_dir, report(run_dir)))


if __name__ == "__main__":
    main()
