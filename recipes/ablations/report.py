# SPDX-License-Identifier: Apache-2.0
"""Tables and plots of the ablations from the files of their runs, and the metrics of every training step.

    python -m recipes.ablations.report
    python -m recipes.ablations.report --steps-of outputs/ablations

The first reads ``results/<suite>/runs.jsonl`` and writes ``results/<suite>.md`` and ``.png``; errors are over seeds,
differences are paired by seed, against the baseline of the suite. The second reads ``metrics.jsonl`` of the runs that
have a result and writes ``results/<suite>_steps.jsonl``: a line for each run, with one value for each step and metric,
four significant digits.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from prime_ext.run.metrics_file import read_metrics
from prime_ext.utils.files import write_json_lines, write_text
from recipes.ablations.suites import SUITES, Suite
from recipes.figures import BLUE, new_figure, save
from recipes.run_statistics import PAIR_ACCURACY, markdown, standard_errors, write_mean
from recipes.study_runs import read_runs

RESULTS = Path(__file__).parent / "results"
RATIO = "prime/process/return_std_over_outcome"
STEP_METRICS = (
    "prime/accuracy/before_filter",
    "prime/filter/examined",
    "prime/filter/kept_fraction",
    "prime/gate/value",
    "prime/process/normalizer",
    RATIO,
    "prm/grad_norm",
    "prm/loss",
    PAIR_ACCURACY,
    "prm/reward_sum/correct",
    "prm/reward_sum/wrong",
    "prm/reward_sum/std",
    "actor/entropy",
    "actor/grad_norm",
    "response_length/mean",
)
# By variant, in the order of the suite, and seed.
Results = dict[str, dict[int, dict]]


def read_results(folder: Path, suite: Suite) -> Results:
    """The results of a suite."""
    found: Results = defaultdict(dict)
    for run, result in read_runs(folder).items():
        variant, seed = run.rsplit("_seed", 1)
        found[variant][int(seed)] = result
    return {name: dict(sorted(found[name].items())) for name in suite.variants if name in found}


def final(result: dict, how: str = "temperature_1") -> float:
    """Accuracy after the last step."""
    return result["curve"][max(result["curve"], key=int)][how]["accuracy"]


def _metric(results: dict[int, dict], name: str, when: str) -> str:
    values = [result["metrics"][name][when] for result in results.values() if name in result["metrics"]]
    return f"{np.mean(values):.2f}" if values else "-"


def table(suite: Suite, found: Results) -> str:
    """Markdown table, one row per variant."""
    head = (
        "variant",
        "seeds",
        "accuracy at the end, temperature 1 (%)",
        "every seed",
        f"minus {suite.variants[suite.baseline].label}",
        "greedy (%)",
        "pair accuracy of the PRM, last 10 steps",
        "process over outcome, first 5 / last 10 steps",
    )
    baseline, rows = found.get(suite.baseline, {}), []
    for name, results in found.items():
        paired = [final(results[seed]) - final(baseline[seed]) for seed in results if seed in baseline]
        accuracies = [final(result) for result in results.values()]
        rows.append(
            (
                suite.variants[name].label,
                str(len(results)),
                write_mean(accuracies, 100, 1),
                ", ".join(f"{100 * accuracy:.1f}" for accuracy in accuracies),
                "-" if name == suite.baseline or not paired else write_mean(paired, 100, 1),
                write_mean([final(result, "greedy") for result in results.values()], 100, 1),
                _metric(results, PAIR_ACCURACY, "last_10"),
                f"{_metric(results, RATIO, 'first_5')} / {_metric(results, RATIO, 'last_10')}",
            )
        )
    return markdown(head, rows)


def plot(suite: Suite, found: Results, path: Path) -> None:
    """Accuracy at the end of every variant: a point per seed, the mean and its standard error."""
    figure, ((axis,),) = new_figure(1, 1, (7.5, 0.42 * len(found) + 1.4))
    start = next(iter(next(iter(found.values())).values()))["curve"]["0"]["temperature_1"]["accuracy"]
    for row, results in enumerate(found.values()):
        values = np.array([final(result) for result in results.values()])
        axis.plot(values, np.full(len(values), row), "o", color="#9ebfdc", markersize=5)
        error = standard_errors(values)
        axis.errorbar(values.mean(), row, xerr=error, fmt="|", color=BLUE, markersize=14, capsize=3, linewidth=1.8)
    axis.axvline(start, color="grey", linewidth=1, linestyle=":")
    axis.set_yticks(range(len(found)), [suite.variants[name].label for name in found])
    axis.invert_yaxis()
    axis.set(xlabel=f"accuracy at temperature 1 after {suite.steps} steps (dotted: start)", xlim=(0, 1))
    save(figure, path)


def step_metrics(run: Path) -> dict[str, list[float | None]]:
    """The metrics of a run, in the order of its steps; those that it does not have are left out."""
    rows = [row for row in read_metrics(run / "metrics.jsonl").values() if "timing_s/step" in row]
    found = {name: [float(f"{row[name]:.4g}") if name in row else None for row in rows] for name in STEP_METRICS}
    return {name: values for name, values in found.items() if any(value is not None for value in values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--steps-of", type=Path, metavar="WORK_DIR", help="write the metrics of every step instead")
    arguments = parser.parse_args()
    for name, suite in SUITES.items():
        found = read_results(arguments.results / name, suite)
        if not found:
            continue
        if arguments.steps_of:
            folder = arguments.steps_of / name / "runs"
            runs = [(key, seed, folder / f"{key}_seed{seed}") for key in found for seed in found[key]]
            if missing := [run for _, _, run in runs if not run.is_dir()]:
                sys.exit(f"{missing[0]} is not there, as {len(missing) - 1} more of the runs that have a result")
            rows = [{"variant": key, "seed": seed, "metrics": step_metrics(run)} for key, seed, run in runs]
            write_json_lines(arguments.results / f"{name}_steps.jsonl", rows)
        else:
            text = table(suite, found)
            write_text(arguments.results / f"{name}.md", text)
            plot(suite, found, arguments.results / f"{name}.png")
            print(f"== {suite.title}\n{text}")


if __name__ == "__main__":
    main()
