# SPDX-License-Identifier: Apache-2.0
"""Print the table of a study from its results.

    python -m recipes.studies.study_report compact
    python -m recipes.studies.study_report compact --baseline rloo_ema --axis seconds

A study is ``recipes/studies/NAME.yaml`` and its results ``recipes/studies/results/NAME.json``,
unless paths are given. ``--picture FILE`` draws the curves, or the ``picture`` of the study: an
``accuracy`` at which methods are compared, and ``lines`` of methods by their place on the ``axis``.
"""

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from matplotlib.axes import Axes

from prime_ext.utils.files import read_json
from prime_ext.utils.report_page import format_markdown_table
from recipes.figures import GREY, make_figure, save
from recipes.run_statistics import find_crossing, format_mean, mean_and_error

FOLDER = Path(__file__).parent
MEASURES = {"pair_accuracy": "pair accuracy", "gate": "gate", "step_auc": "AUC of steps"}
Study = Mapping[str, Any]
# The runs of a method by seed; each has a "curve", lists by name, and "end", numbers by name.
Runs = dict[int, dict[str, Any]]


class Arrival(NamedTuple):
    """Point of a curve where a run reaches an accuracy; the end of the curve if it does not."""

    position: float
    arrived: bool


class Method(NamedTuple):
    """A method: the words of its best candidate, and its runs."""

    words: list[str]
    runs: Runs


def read_study(name: str) -> dict[str, Any]:
    """Read a study by its name or its path. ``SystemExit``: there is none."""
    path = Path(name) if name.endswith(".yaml") else FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.yaml")))
        raise SystemExit(
            f"error: {name} is not a study; there are: {known}, or give a path that ends in .yaml"
        )
    return {"name": path.stem, **yaml.safe_load(path.read_text())}


def get_seeds(study: Study, method: str) -> list[int]:
    """Return the seeds that a method runs with."""
    return [*study["seeds"], *study.get("more_seeds", {}).get(method, [])]


def read_results(study: Study, path: Path | None = None) -> dict[str, Method]:
    """Return the methods of a study in its order, with the runs of the seeds that it names.

    ``SystemExit``: the study has no results.
    """
    path = path or FOLDER / "results" / f"{study['name']}.json"
    if not path.is_file():
        raise SystemExit(
            f"error: {path} is missing; python -m recipes.studies.run {study['name']} makes it"
        )
    methods = read_json(path)["methods"]
    results = {}
    for name in study["methods"]:
        kept = methods.get(name, {"runs": {}})["runs"]
        if runs := {seed: kept[str(seed)] for seed in get_seeds(study, name) if str(seed) in kept}:
            results[name] = Method(methods[name]["words"], runs)
    return results


def find_arrivals(runs: Runs, axis: str, accuracy: float) -> dict[int, Arrival]:
    """Return where each run first reaches the accuracy, on the linearly interpolated curve."""
    positions = {
        seed: find_crossing(run["curve"][axis], run["curve"]["accuracy"], accuracy)
        for seed, run in runs.items()
    }
    return {
        seed: Arrival(runs[seed]["curve"][axis][-1], False)
        if position is None
        else Arrival(position, True)
        for seed, position in positions.items()
    }


def compare(
    reached: Mapping[int, Arrival], baseline: Mapping[int, Arrival]
) -> tuple[str, list[float]]:
    """Return the bound, see :func:`format_ratio`, and the logarithms of the speed-ups by pair."""
    pairs = [(baseline[seed], reached[seed]) for seed in baseline if seed in reached]
    pairs = [(first, second) for first, second in pairs if first.arrived or second.arrived]
    logs = [math.log(first.position / second.position) for first, second in pairs]
    late_baseline = not all(first.arrived for first, _ in pairs)
    late_own = not all(second.arrived for _, second in pairs)
    bound = {(False, False): "", (True, False): ">", (False, True): "<", (True, True): "?"}[
        late_baseline, late_own
    ]
    return bound, logs


def format_ratio(reached: Mapping[int, Arrival], baseline: Mapping[int, Arrival] | None) -> str:
    """Format the mean over seeds and, in brackets, the method's speed-up over the baseline.

    The speed-up is the geometric mean of the ratios over the seeds of both, with the standard error
    of its logarithm and the pairs in which the method is ahead. Pairs in which neither arrives do
    not count. A run that never arrives counts with its budget, which makes the mean a bound, ``>``.
    It makes the ratio a bound as well: ``>`` if only baselines did not arrive, ``<`` if only runs
    of the method, ``?`` if some of each.
    """
    mean = float(np.mean([arrival.position for arrival in reached.values()]))
    late = "" if all(arrival.arrived for arrival in reached.values()) else ">"
    text = f"{late}{mean:,.{0 if mean >= 100 else 1}f}"
    bound, logs = compare(reached, baseline or {})
    if not logs:
        return text
    ratio, error = mean_and_error(logs)
    spread = "" if error is None else f" ± {error:.2f}"
    return (
        f"{text} ({bound}{math.exp(ratio):.2f}{spread}, {sum(log > 0 for log in logs)}/{len(logs)})"
    )


def format_arrivals(reached: Mapping[int, Arrival], digits: int) -> str:
    """Format the mean and its standard error over the runs that arrived."""
    positions = [arrival.position for arrival in reached.values() if arrival.arrived]
    partial = f" ({len(positions)} of {len(reached)} runs)" if len(positions) < len(reached) else ""
    return format_mean(positions, digits=digits) + partial if positions else "never"


def format_difference(runs: Runs, baseline: Runs, key: str) -> str:
    """Format the mean final difference from the baseline by seed; accuracies are in points."""
    factor, digits = (100, 1) if key == "accuracy" else (1, 2)
    pairs = [
        run["end"][key] - baseline[seed]["end"][key]
        for seed, run in runs.items()
        if seed in baseline
    ]
    return format_mean(pairs, factor, digits) if pairs else "-"


def format_row(
    study: Study, results: Mapping[str, Method], method: str, baseline: str
) -> dict[str, str]:
    """Return the cells of a method by the names of their columns."""
    table = study["table"]
    runs = results[method].runs
    baseline_runs = results[baseline].runs
    row = {"seeds": str(len(runs))}
    for axis in table.get("ratios", []):
        for accuracy in table["accuracies"]:
            other = None if method == baseline else find_arrivals(baseline_runs, axis, accuracy)
            row[f"{axis} to {accuracy:.0%}"] = format_ratio(
                find_arrivals(runs, axis, accuracy), other
            )
    for name, (key, factor, digits) in table.get("end", {}).items():
        values = [run["end"][key] for run in runs.values()]
        row[name] = "-" if None in values else format_mean(values, factor, digits)
    if key := table.get("difference"):
        difference = "-" if method == baseline else format_difference(runs, baseline_runs, key)
        row[f"{key.replace('_', ' ')} minus {study['labels'][baseline]}"] = difference
    for axis in table.get("arrivals", []):
        for accuracy in table["accuracies"]:
            arrived = find_arrivals(runs, axis, accuracy)
            row[f"{axis} to {accuracy:.0%}"] = format_arrivals(arrived, table.get("digits", 0))
    for key in table.get("means", []):
        points = [
            point
            for run in runs.values()
            for point in run["curve"].get(key, [])
            if point is not None
        ]
        row[MEASURES[key]] = f"{np.mean(points):.2f}" if points else "-"
    return row


def label_method(study: Study, name: str, words: list[str]) -> str:
    """Return the label of a method in the table; without one, its name and words."""
    changes = [word for word in words if "=" in word]
    return study.get("labels", {}).get(name) or ", ".join([f"`{name}`", *changes])


def format_table(study: Study, results: Mapping[str, Method], baseline: str | None = None) -> str:
    """Format a study's table in Markdown, compared with a baseline.

    By default this is the first method that has runs. ``SystemExit``: the baseline has none.
    """
    baseline = baseline or next(iter(results or study["methods"]))
    if baseline not in results:
        raise SystemExit(
            f"error: baseline {baseline} has no runs; there are: {', '.join(results) or 'none'}"
        )
    rows = {name: format_row(study, results, name, baseline) for name in results}
    lines = [["", *rows[baseline]]]
    lines += [
        [label_method(study, name, results[name].words), *row.values()]
        for name, row in rows.items()
    ]
    if study["table"].get("transpose"):
        lines = list(zip(*lines, strict=True))
    return format_markdown_table(lines[0], lines[1:], escape=False)


def label_curve(study: Study, name: str, words: list[str]) -> str:
    """Return the label of a method in a picture, without the backticks of Markdown."""
    return label_method(study, name, words).replace("`", "")


def draw_curves(axis: Axes, study: Study, results: Mapping[str, Method]) -> None:
    """Draw the mean accuracy of each method over rollouts, with its standard error over seeds."""
    for name, (words, runs) in results.items():
        rollouts = next(iter(runs.values()))["curve"]["rollouts"]
        curves = [run["curve"]["accuracy"] for run in runs.values()]
        points = [mean_and_error(values) for values in zip(*curves, strict=True)]
        mean, error = 100 * np.array([[mean, error or 0.0] for mean, error in points]).T
        (line,) = axis.plot(rollouts, mean, label=label_curve(study, name, words))
        axis.fill_between(rollouts, mean - error, mean + error, color=line.get_color(), alpha=0.2)
    axis.set(xlabel="rollouts", ylabel="accuracy (%)")


def draw_ratios(axis: Axes, study: Study, results: Mapping[str, Method], baseline: str) -> None:
    """Draw the lines of the study's ``picture``: speed-ups over the baseline, with their errors.

    An open circle is a bound.
    """
    picture = study["picture"]
    places = {
        name: find_arrivals(method.runs, "rollouts", picture["accuracy"])
        for name, method in results.items()
    }
    for label, names in picture["lines"].items():
        ratios = {at: compare(places[name], places[baseline]) for at, name in names.items()}
        ratios = {at: (bound, logs) for at, (bound, logs) in ratios.items() if logs}
        points = [mean_and_error(logs) for _, logs in ratios.values()]
        mean, error = np.array([[mean, error or 0.0] for mean, error in points]).T
        middle = np.exp(mean)
        spread = [middle - np.exp(mean - error), np.exp(mean + error) - middle]
        bars = axis.errorbar(list(ratios), middle, yerr=spread, capsize=3, label=label)
        color = bars[0].get_color()
        for at, value, (bound, _) in zip(ratios, middle, ratios.values(), strict=True):
            axis.plot(at, value, "o", color=color, markerfacecolor="white" if bound else color)
    axis.axhline(1, color=GREY, linewidth=1)
    label = label_curve(study, baseline, [])
    axis.set(
        xlabel=picture["axis"],
        ylabel=f"rollouts of {label} to {picture['accuracy']:.0%} / its own",
        yscale="log",
    )
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:g}")


def draw(study: Study, results: Mapping[str, Method], baseline: str, path: Path) -> None:
    """Write the picture of a study: the lines that it names, or the curves of all methods."""
    figure, axes = make_figure(1, 1, (8, 4.5))
    axis = axes[0, 0]
    if "picture" in study:
        draw_ratios(axis, study, results, baseline)
    else:
        draw_curves(axis, study, results)
    axis.legend(frameon=False, fontsize="small")
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study")
    parser.add_argument("--results", type=Path)
    parser.add_argument(
        "--baseline", help="method to compare with; default: the first that has runs"
    )
    parser.add_argument("--axis", choices=("rollouts", "seconds"), default="rollouts")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write a picture too")
    options = parser.parse_args()
    study = read_study(options.study)
    if "ratios" in study["table"]:
        study["table"]["ratios"] = [options.axis]
    results = read_results(study, options.results)
    print(format_table(study, results, options.baseline))
    if options.picture:
        draw(study, results, options.baseline or next(iter(results)), options.picture)


if __name__ == "__main__":
    main()
