# SPDX-License-Identifier: Apache-2.0
"""The table of a study from its results.

    python -m recipes.studies.report compact
    python -m recipes.studies.report compact --baseline rloo_ema --axis seconds --plot compact.png

A study is ``recipes/studies/NAME.yaml`` and its results ``recipes/studies/results/NAME.json``, unless paths are given.
"""

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import yaml

from prime_ext.utils.files import read_json
from prime_ext.utils.report_page import markdown_table
from recipes.figures import new_figure, save
from recipes.run_statistics import crossing, mean_and_error, write_mean

FOLDER = Path(__file__).parent
COLOURS = [*matplotlib.colormaps["tab20"].colors[::2], *matplotlib.colormaps["tab20"].colors[1::2]]
MEASURES = {"pair_accuracy": "pair accuracy", "gate": "gate", "step_auc": "AUC of steps"}
Study = Mapping[str, Any]
# The runs of a method by seed; each has a "curve", lists by name, and "end", numbers by name.
Runs = dict[int, dict[str, Any]]


class Arrival(NamedTuple):
    """Where a run reaches an accuracy; the end of its curve if it does not."""

    place: float
    arrived: bool


class Ratio(NamedTuple):
    """Baseline over method: geometric mean over pairs, standard error of its logarithm, pairs, wins, bound."""

    mean: float
    log_error: float | None
    n: int
    ahead: int
    bound: str


class Method(NamedTuple):
    """What a method ran with, the best of its candidates, and its runs."""

    words: list[str]
    runs: Runs


def read_study(name: str) -> dict[str, Any]:
    """Read a study by its name or its path.

    Raises:
        SystemExit: there is none.
    """
    path = Path(name) if name.endswith(".yaml") else FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.yaml")))
        raise SystemExit(f"error: {name} is not a study; there are: {known}, or give a path that ends in .yaml")
    return {"name": path.stem, **yaml.safe_load(path.read_text())}


def seeds_of(study: Study, method: str) -> list[int]:
    """Return the seeds that a method runs with."""
    return [*study["seeds"], *study.get("more_seeds", {}).get(method, [])]


def read_results(study: Study, path: Path | None = None) -> dict[str, Method]:
    """Return the methods of a study in its order, with the runs of the seeds that it names.

    Raises:
        SystemExit: there are no results.
    """
    path = path or FOLDER / "results" / f"{study['name']}.json"
    if not path.is_file():
        raise SystemExit(f"error: {path} is missing; python -m recipes.studies.run {study['name']} makes it")
    methods = read_json(path)["methods"]
    results = {}
    for name in study["methods"]:
        kept = methods.get(name, {"runs": {}})["runs"]
        if runs := {seed: kept[str(seed)] for seed in seeds_of(study, name) if str(seed) in kept}:
            results[name] = Method(methods[name]["words"], runs)
    return results


def arrivals(runs: Runs, axis: str, accuracy: float) -> dict[int, Arrival]:
    """Return where each run first reaches the accuracy, on the linearly interpolated curve."""
    found = {}
    for seed, run in runs.items():
        places = run["curve"][axis]
        place = crossing(places, run["curve"]["accuracy"], accuracy)
        found[seed] = Arrival(places[-1], False) if place is None else Arrival(place, True)
    return found


def paired_ratio(baseline: Mapping[int, Arrival], other: Mapping[int, Arrival]) -> Ratio | None:
    """Compare the baseline with a method over the seeds of both; None if in no pair one of the two arrives.

    A run that never arrives counts with its budget, which makes the ratio a bound: ``>`` if only baselines did not
    arrive, ``<`` if only runs of the method, ``?`` if some of each.
    """
    seeds = [seed for seed in baseline if seed in other and (baseline[seed].arrived or other[seed].arrived)]
    if not seeds:
        return None
    logs = [math.log(baseline[seed].place / other[seed].place) for seed in seeds]
    late_baseline = any(not baseline[seed].arrived for seed in seeds)
    late_other = any(not other[seed].arrived for seed in seeds)
    bound = {(False, False): "", (True, False): ">", (False, True): "<", (True, True): "?"}[late_baseline, late_other]
    summary = mean_and_error(logs)
    ahead = sum(log > 0 for log in logs)
    return Ratio(math.exp(summary["mean"]), summary["standard_error"], len(logs), ahead, bound)


def write_ratio(own: Mapping[int, Arrival], baseline: Mapping[int, Arrival] | None) -> str:
    """Write the mean over seeds and, in brackets, the ratio to the baseline; ``>``: some runs did not arrive."""
    mean = float(np.mean([arrival.place for arrival in own.values()]))
    late = "" if all(arrival.arrived for arrival in own.values()) else ">"
    text = f"{late}{mean:,.{0 if mean >= 100 else 1}f}"
    ratio = None if baseline is None else paired_ratio(baseline, own)
    if ratio is None:
        return text
    error = "" if ratio.log_error is None else f" ± {ratio.log_error:.2f}"
    return f"{text} ({ratio.bound}{ratio.mean:.2f}{error}, {ratio.ahead}/{ratio.n})"


def write_arrivals(own: Mapping[int, Arrival], digits: int) -> str:
    """Write the mean and its standard error over the runs that arrived."""
    places = [arrival.place for arrival in own.values() if arrival.arrived]
    if not places:
        return "never"
    partial = f" ({len(places)} of {len(own)} runs)" if len(places) < len(own) else ""
    return write_mean(places, digits=digits) + partial


def write_difference(runs: Runs, baseline: Runs, key: str) -> str:
    """Write the mean difference from the baseline at the end, paired by seed; accuracies in points."""
    factor, digits = (100, 1) if key == "accuracy" else (1, 2)
    pairs = [run["end"][key] - baseline[seed]["end"][key] for seed, run in runs.items() if seed in baseline]
    return write_mean(pairs, factor, digits) if pairs else "-"


def write_head(study: Study, baseline: str) -> list[str]:
    """Return the names of the columns."""
    table = study["table"]
    head = ["seeds"]
    head += [f"{axis} to {accuracy:.0%}" for axis in table.get("ratios", []) for accuracy in table["accuracies"]]
    head += list(table.get("end", {}))
    if "difference" in table:
        head.append(f"{table['difference'].replace('_', ' ')} minus {study['labels'][baseline]}")
    head += [f"{axis} to {accuracy:.0%}" for axis in table.get("arrivals", []) for accuracy in table["accuracies"]]
    return head + [MEASURES[key] for key in table.get("means", [])]


def write_row(study: Study, results: Mapping[str, Method], method: str, baseline: str) -> list[str]:
    """Return the cells of a method."""
    table = study["table"]
    runs, baseline_runs = results[method].runs, results[baseline].runs
    row = [str(len(runs))]
    for axis in table.get("ratios", []):
        for accuracy in table["accuracies"]:
            other = None if method == baseline else arrivals(baseline_runs, axis, accuracy)
            row.append(write_ratio(arrivals(runs, axis, accuracy), other))
    for key, factor, digits in table.get("end", {}).values():
        values = [run["end"][key] for run in runs.values()]
        row.append("-" if None in values else write_mean(values, factor, digits))
    if "difference" in table:
        row.append("-" if method == baseline else write_difference(runs, baseline_runs, table["difference"]))
    for axis in table.get("arrivals", []):
        for accuracy in table["accuracies"]:
            row.append(write_arrivals(arrivals(runs, axis, accuracy), table.get("digits", 0)))
    for key in table.get("means", []):
        points = [point for run in runs.values() for point in run["curve"].get(key, []) if point is not None]
        row.append(f"{np.mean(points):.2f}" if points else "-")
    return row


def label_method(study: Study, name: str, words: list[str]) -> str:
    """Return the name of a method in the table; without a label its own name and what was set, but for other models."""
    changes = [word for word in words if "=" in word and "{" not in word]
    return study.get("labels", {}).get(name) or ", ".join([f"`{name}`", *changes])


def write_table(study: Study, results: Mapping[str, Method], baseline: str | None = None) -> str:
    """Write the Markdown table of a study, compared with the baseline, by default its first method.

    Raises:
        SystemExit: the baseline has no runs.
    """
    baseline = baseline or next(iter(study["methods"]))
    if baseline not in results:
        raise SystemExit(f"error: baseline {baseline} has no runs; there are: {', '.join(results) or 'none'}")
    lines = [["", *write_head(study, baseline)]]
    for name, method in results.items():
        lines.append([label_method(study, name, method.words), *write_row(study, results, name, baseline)])
    if study["table"].get("transpose"):
        lines = list(zip(*lines, strict=True))
    return markdown_table(lines[0], lines[1:], escape=False)


def plot_curves(results: Mapping[str, Method], axis: str, path: Path) -> None:
    """Draw accuracy over rollouts or seconds: every run, and the mean over seeds as far as all of them go."""
    figure, ((panel,),) = new_figure(1, 1, (8, 4.5))
    for index, (name, method) in enumerate(results.items()):
        curves = [np.array([run["curve"][axis], run["curve"]["accuracy"]]) for run in method.runs.values()]
        for curve in curves:
            panel.plot(*curve, color=COLOURS[index % 20], alpha=0.2, linewidth=0.6)
        grid = np.linspace(0, min(curve[0, -1] for curve in curves), 200)
        mean = np.mean([np.interp(grid, *curve) for curve in curves], axis=0)
        panel.plot(grid, mean, linewidth=2, label=name, color=COLOURS[index % 20])
    panel.set(xlabel=axis, ylabel="accuracy on held-out problems, temperature 1")
    panel.legend(frameon=False, fontsize=8)
    save(figure, path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--baseline", help="method to compare with; default: the first of the study")
    parser.add_argument("--only", nargs="+", metavar="METHOD")
    parser.add_argument("--axis", choices=("rollouts", "seconds"), default="rollouts")
    parser.add_argument("--plot", type=Path, help="also draw the curves")
    options = parser.parse_args()
    study = read_study(options.study)
    if "ratios" in study["table"]:
        study["table"]["ratios"] = [options.axis]
    results = read_results(study, options.results)
    results = {name: method for name, method in results.items() if not options.only or name in options.only}
    print(write_table(study, results, options.baseline))
    if options.plot:
        plot_curves(results, options.axis, options.plot)


if __name__ == "__main__":
    main()
