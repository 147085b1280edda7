# SPDX-License-Identifier: Apache-2.0
"""Rollouts and seconds to fixed accuracies, ratios to a baseline paired by seed, and curves, from the runs of a task.

    python -m recipes.lab_study.report outputs/lab/compact --baseline rloo --accuracies 0.5,0.7,0.8

Writes ``report.md``, ``report.json`` and ``report.png`` beside the runs.
"""

import argparse
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from prime_ext.utils.files import write_json, write_text
from recipes.figures import new_figure, save
from recipes.run_statistics import crossing, markdown, mean_and_error
from recipes.study_runs import read_runs as read_kept_runs

Runs = dict[str, dict[int, dict[str, Any]]]
Arrival = tuple[float, bool]  # where a run reaches an accuracy and whether it does; else the end of its curve
COLOURS = [*matplotlib.colormaps["tab20"].colors[::2], *matplotlib.colormaps["tab20"].colors[1::2]]
MEASURES = {"pair_accuracy": "pair accuracy", "gate": "gate", "step_auc": "AUC of steps"}


def read_runs(folder: Path) -> Runs:
    """Runs by method and seed."""
    runs: Runs = defaultdict(dict)
    for run in read_kept_runs(folder).values():
        runs[run["method"]][run["seed"]] = run
    return dict(runs)


def arrivals(runs: dict[int, dict[str, Any]], axis: str, accuracy: float) -> dict[int, Arrival]:
    """Of the runs of a method, by seed."""
    found = {}
    for seed, run in runs.items():
        places, values = ([point[name] for point in run["curve"]] for name in (axis, "accuracy"))
        place = crossing(places, values, accuracy)
        found[seed] = (places[-1], False) if place is None else (place, True)
    return found


def paired_ratio(baseline: dict[int, Arrival], other: dict[int, Arrival]) -> dict[str, float | int | str | None] | None:
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
    """Per method, axis and accuracy: the mean, how many runs arrived, and the ratio; and what the PRM did."""
    summary: dict[str, Any] = {}
    for method, seeds in sorted(runs.items(), key=lambda item: item[0] != baseline):
        rows: dict[str, Any] = {"seeds": sorted(seeds), "rollouts": {}, "seconds": {}}
        for axis in ("rollouts", "seconds"):
            for accuracy in accuracies:
                own, other = (arrivals(runs[name], axis, accuracy) for name in (method, baseline))
                rows[axis][f"{accuracy:g}"] = {
                    "mean": float(np.mean([value for value, _ in own.values()])),
                    "arrived": sum(arrived for _, arrived in own.values()),
                    "ratio": None if method == baseline else paired_ratio(other, own),
                }
        points = [point for run in seeds.values() for point in run["curve"]]
        known = {name: [point[name] for point in points if point[name] is not None] for name in MEASURES}
        summary[method] = rows | {name: float(np.mean(values)) if values else None for name, values in known.items()}
    return summary


def cell(entry: dict[str, Any], n_seeds: int) -> str:
    digits = 0 if entry["mean"] >= 100 else 1
    text = f"{'' if entry['arrived'] == n_seeds else '>'}{entry['mean']:,.{digits}f}"
    if (ratio := entry["ratio"]) is None:
        return text
    error = "" if ratio["log_error"] is None else f" ± {ratio['log_error']:.2f}"
    return f"{text} ({ratio['bound']}{ratio['ratio']:.2f}{error}, {ratio['ahead']}/{ratio['n']})"


def tables(summary: dict[str, Any], baseline: str, accuracies: list[float]) -> str:
    """Markdown."""
    text = (
        f"Mean over seeds; `>`: some runs did not arrive and count with their budget. In brackets {baseline} over the "
        "method, geometric mean of the ratios paired by seed ± standard error of its logarithm, and in how many pairs "
        "the method is ahead.\n"
    )
    for axis in ("rollouts", "seconds"):
        measures = MEASURES if axis == "rollouts" else {}
        head = ["method", "seeds", *(f"{axis} to {accuracy:g}" for accuracy in accuracies), *measures.values()]
        lines = []
        for method, rows in summary.items():
            cells = [cell(entry, len(rows["seeds"])) for entry in rows[axis].values()]
            cells += ["-" if rows[name] is None else f"{rows[name]:.2f}" for name in measures]
            lines.append([method, str(len(rows["seeds"])), *cells])
        text += "\n" + markdown(head, lines)
    return text


def plot(runs: Runs, path: Path) -> None:
    """Accuracy over rollouts and over seconds: every run, and the mean over seeds as far as all of them go."""
    # The names below the panels, since they are as long as what was set.
    figure, axes = new_figure(1, 2, (12, 4.5 + 0.2 * len(runs)), sharey=True)
    for panel, axis in zip(axes[0], ("rollouts", "seconds"), strict=True):
        for index, (method, seeds) in enumerate(runs.items()):
            curves = [np.array([[point[axis], point["accuracy"]] for point in run["curve"]]) for run in seeds.values()]
            for curve in curves:
                panel.plot(*curve.T, color=COLOURS[index % 20], alpha=0.25, linewidth=0.8)
            grid = np.linspace(0, min(curve[-1, 0] for curve in curves), 200)
            mean = np.mean([np.interp(grid, *curve.T) for curve in curves], axis=0)
            style = {"color": COLOURS[index % 20], "linestyle": ("-", "--", ":")[index // 20 % 3]}
            panel.plot(grid, mean, linewidth=2, label=method, **style)
        panel.set_xlabel(axis)
    axes[0, 0].set_ylabel("accuracy on held-out problems, temperature 1")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", fontsize=8)
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="OUTPUT/TASK of recipes.lab_study.run")
    parser.add_argument("--baseline", default="rloo")
    parser.add_argument("--accuracies", default="0.5,0.7,0.8")
    arguments = parser.parse_args()
    runs, baseline = read_runs(arguments.folder), arguments.baseline
    try:
        accuracies = [float(text) for text in arguments.accuracies.split(",")]
    except ValueError:
        raise SystemExit(f"error: --accuracies={arguments.accuracies} must be numbers with commas in between") from None
    if baseline not in runs:
        raise SystemExit(f"error: --baseline={baseline} has no runs here; there are: {', '.join(runs) or 'none'}")
    start = max(run["curve"][0]["accuracy"] for seeds in runs.values() for run in seeds.values())
    if min(accuracies) <= start:
        raise SystemExit(f"error: --accuracies={min(accuracies):g} is not above the start, {start:g}")
    summary = summarize(runs, baseline, accuracies)
    text = tables(summary, baseline, accuracies)
    write_json(arguments.folder / "report.json", {"baseline": baseline, "methods": summary})
    write_text(arguments.folder / "report.md", text)
    plot(runs, arguments.folder / "report.png")
    print(text)


if __name__ == "__main__":
    main()
