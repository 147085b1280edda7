# SPDX-License-Identifier: Apache-2.0
"""Rollouts and seconds to fixed accuracies, ratios to a baseline paired by seed, and curves, from the runs of a task.

    python -m recipes.lab.report outputs/lab/compact --baseline rloo --accuracies 0.5,0.7,0.8

Writes ``report.md``, ``report.json`` and ``report.png`` beside the runs.
"""

import argparse
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from prime_ext.config.checks import SettingsError
from prime_ext.utils.files import atomic_path, read_json, write_json, write_text
from recipes.run_statistics import mean_and_error

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

Runs = dict[str, dict[int, dict[str, Any]]]
COLOURS = [*matplotlib.colormaps["tab20"].colors[::2], *matplotlib.colormaps["tab20"].colors[1::2]]
MEASURES = {"pair_accuracy": "pair accuracy", "gate": "gate", "step_auc": "AUC of steps"}


def read_runs(folder: Path) -> Runs:
    """Runs by method and seed."""
    runs: Runs = defaultdict(dict)
    for path in sorted(folder.glob("*_seed*.json")):
        run = read_json(path)
        runs[run["method"]][run["seed"]] = run
    return dict(runs)


def crossing(curve: list[dict], axis: str, accuracy: float) -> tuple[float, bool]:
    """Where the interpolated curve first reaches the accuracy, and whether it does; else the end of the curve."""
    for low, high in zip(curve, curve[1:], strict=False):
        if high["accuracy"] >= accuracy:
            share = (accuracy - low["accuracy"]) / (high["accuracy"] - low["accuracy"])
            return low[axis] + share * (high[axis] - low[axis]), True
    return curve[-1][axis], False


def paired_ratio(
    baseline: dict[int, tuple[float, bool]], other: dict[int, tuple[float, bool]]
) -> dict[str, float | int | str | None] | None:
    """Baseline over method, geometric mean over the seeds of both, with the standard error of its logarithm.

    A run that never arrives counts with its budget, which makes the ratio a bound: ``>`` if only baselines did not
    arrive, ``<`` if only runs of the method, ``?`` if some of each. A pair in which neither arrives says nothing.
    """
    seeds = [seed for seed in baseline if seed in other and (baseline[seed][1] or other[seed][1])]
    if not seeds:
        return None
    logs = [math.log(baseline[seed][0] / other[seed][0]) for seed in seeds]
    late = (any(not baseline[seed][1] for seed in seeds), any(not other[seed][1] for seed in seeds))
    bound = {(False, False): "", (True, False): ">", (False, True): "<", (True, True): "?"}[late]
    found = mean_and_error(logs)
    entry = {"ratio": math.exp(found["mean"]), "log_error": found["standard_error"], "n": len(logs)}
    return entry | {"ahead": sum(log > 0 for log in logs), "bound": bound}


def summarize(runs: Runs, baseline: str, accuracies: list[float]) -> dict[str, Any]:
    """Per method, axis and accuracy: the mean, how many runs arrived, and the ratio; and what the PRM did.

    Raises:
        SettingsError: the baseline has no runs, or a curve starts at an accuracy that is asked for.
    """
    if baseline not in runs:
        raise SettingsError(f"--baseline={baseline} has no runs here; there are: {', '.join(runs) or 'none'}")
    start = max(run["curve"][0]["accuracy"] for seeds in runs.values() for run in seeds.values())
    if min(accuracies) <= start:
        raise SettingsError(f"--accuracies={min(accuracies):g} is not above the start, {start:g}")
    summary: dict[str, Any] = {}
    for method, seeds in sorted(runs.items(), key=lambda item: item[0] != baseline):
        rows: dict[str, Any] = {"seeds": sorted(seeds)}
        for axis in ("rollouts", "seconds"):
            for accuracy in accuracies:
                own, other = (
                    {seed: crossing(run["curve"], axis, accuracy) for seed, run in runs[name].items()}
                    for name in (method, baseline)
                )
                rows.setdefault(axis, {})[f"{accuracy:g}"] = {
                    "mean": float(np.mean([value for value, _ in own.values()])),
                    "arrived": sum(arrived for _, arrived in own.values()),
                    "ratio": None if method == baseline else paired_ratio(other, own),
                }
        points = [point for run in seeds.values() for point in run["curve"]]
        known = {name: [point[name] for point in points if point[name] is not None] for name in MEASURES}
        rows |= {name: float(np.mean(values)) if values else None for name, values in known.items()}
        summary[method] = rows
    return summary


def cell(entry: dict[str, Any], n_seeds: int) -> str:
    digits = 0 if entry["mean"] >= 100 else 1
    text = f"{'' if entry['arrived'] == n_seeds else '>'}{entry['mean']:,.{digits}f}"
    if (ratio := entry["ratio"]) is None:
        return text
    error = "" if ratio["log_error"] is None else f" ± {ratio['log_error']:.2f}"
    return f"{text} ({ratio['bound']}{ratio['ratio']:.2f}{error}, {ratio['ahead']}/{ratio['n']})"


def table(summary: dict[str, Any], baseline: str, accuracies: list[float]) -> str:
    """Markdown."""
    lines = [
        f"Mean over seeds; `>`: some runs did not arrive and count with their budget. In brackets {baseline} over the "
        "method, geometric mean of the ratios paired by seed ± standard error of its logarithm, and in how many pairs "
        "the method is ahead."
    ]
    for axis in ("rollouts", "seconds"):
        names = [
            *(f"{axis} to {accuracy:g}" for accuracy in accuracies),
            *(MEASURES.values() if axis == "rollouts" else ()),
        ]
        lines += ["", f"| method | seeds | {' | '.join(names)} |", "| --- " * (len(names) + 2) + "|"]
        for method, rows in summary.items():
            cells = [cell(entry, len(rows["seeds"])) for entry in rows[axis].values()]
            if axis == "rollouts":
                cells += ["-" if rows[name] is None else f"{rows[name]:.2f}" for name in MEASURES]
            lines.append(f"| {method} | {len(rows['seeds'])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(runs: Runs, path: Path) -> None:
    """Accuracy over rollouts and over seconds: every run, and the mean over seeds as far as all of them go."""
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.5), sharey=True, layout="constrained")
    for panel, axis in zip(axes, ("rollouts", "seconds"), strict=True):
        for index, (method, seeds) in enumerate(runs.items()):
            curves = [np.array([[point[axis], point["accuracy"]] for point in run["curve"]]) for run in seeds.values()]
            for curve in curves:
                panel.plot(*curve.T, color=COLOURS[index % 20], alpha=0.25, linewidth=0.8)
            grid = np.linspace(0, min(curve[-1, 0] for curve in curves), 200)
            mean = np.mean([np.interp(grid, *curve.T) for curve in curves], axis=0)
            panel.plot(grid, mean, color=COLOURS[index % 20], label=method)
        panel.set_xlabel(axis)
        panel.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy on held-out problems, temperature 1")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="OUTPUT/TASK of recipes.lab.run")
    parser.add_argument("--baseline", default="rloo")
    parser.add_argument("--accuracies", default="0.5,0.7,0.8")
    arguments = parser.parse_args()
    try:
        accuracies = [float(text) for text in arguments.accuracies.split(",")]
    except ValueError:
        raise SystemExit(f"error: --accuracies={arguments.accuracies} must be numbers with commas in between") from None
    runs = read_runs(arguments.folder)
    try:
        summary = summarize(runs, arguments.baseline, accuracies)
    except SettingsError as error:
        raise SystemExit(f"error: {error}") from None
    text = table(summary, arguments.baseline, accuracies)
    write_json(arguments.folder / "report.json", {"baseline": arguments.baseline, "methods": summary})
    write_text(arguments.folder / "report.md", text)
    plot(runs, arguments.folder / "report.png")
    print(text)


if __name__ == "__main__":
    main()
