# SPDX-License-Identifier: Apache-2.0
"""Tables and plots of the ablations from the files of their runs.

    python -m recipes.ablations.report

Reads ``results/<suite>/*.json`` and writes ``results/<suite>.md`` and ``results/<suite>.png``. A standard error is over
seeds; differences are paired by seed, against the baseline of the suite.
"""

import argparse
import re
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from prime_ext.utils.files import atomic_path, read_json, write_text
from recipes.ablations.run import RESULTS
from recipes.ablations.suites import SUITES, Suite
from recipes.run_statistics import standard_errors, write_mean

PAIRS = "prm/pair_accuracy/before_update"
RATIO = "prime/process/return_std_over_outcome"


def read_results(folder: Path, suite: Suite) -> dict[str, dict[int, dict]]:
    """Results by variant, in the order of the suite, and seed."""
    found: dict[str, dict[int, dict]] = defaultdict(dict)
    for path in sorted(folder.glob("*_seed*.json")):
        match = re.fullmatch(r"(\w+)_seed(\d+)", path.stem)
        if match and match[1] in suite.variants:
            found[match[1]][int(match[2])] = read_json(path)
    return {name: dict(sorted(found[name].items())) for name in suite.variants if name in found}


def final(result: dict, how: str = "temperature_1") -> float:
    """Accuracy after the last step."""
    return result["curve"][max(result["curve"], key=int)][how]["accuracy"]


def percent(values: list[float]) -> str:
    """Mean with its standard error over the values, in percent."""
    return write_mean(values, 100, 1)


def _metric(results: dict[int, dict], name: str, when: str) -> str:
    values = [result["metrics"][name][when] for result in results.values() if name in result["metrics"]]
    return f"{np.mean(values):.2f}" if values else "-"


def table(suite: Suite, found: dict[str, dict[int, dict]]) -> str:
    """Markdown table, one row per variant."""
    baseline = found.get(suite.baseline, {})
    lines = [
        "| variant | seeds | accuracy at the end, temperature 1 (%) | every seed | minus "
        f"{suite.variants[suite.baseline].label} | greedy (%) | pair accuracy of the PRM, last 10 steps | process over "
        "outcome, first 5 / last 10 steps |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, results in found.items():
        paired = [final(results[seed]) - final(baseline[seed]) for seed in results if seed in baseline]
        difference = "-" if name == suite.baseline or not paired else percent(paired)
        cells = [
            suite.variants[name].label,
            str(len(results)),
            percent([final(result) for result in results.values()]),
            ", ".join(f"{100 * final(result):.1f}" for result in results.values()),
            difference,
            percent([final(result, "greedy") for result in results.values()]),
            _metric(results, PAIRS, "last_10"),
            f"{_metric(results, RATIO, 'first_5')} / {_metric(results, RATIO, 'last_10')}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(suite: Suite, found: dict[str, dict[int, dict]], path: Path) -> None:
    """Accuracy at the end of every variant: a point per seed, the mean and its standard error."""
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axis = plt.subplots(figsize=(7.5, 0.42 * len(found) + 1.4), layout="constrained")
    start = next(iter(next(iter(found.values())).values()))["curve"]["0"]["temperature_1"]["accuracy"]
    for row, results in enumerate(found.values()):
        values = np.array([final(result) for result in results.values()])
        axis.plot(values, np.full(len(values), row), "o", color="#9ebfdc", markersize=5)
        axis.errorbar(
            values.mean(),
            row,
            xerr=standard_errors(values),
            fmt="|",
            color="#2166ac",
            markersize=14,
            capsize=3,
            linewidth=1.8,
        )
    axis.axvline(start, color="grey", linewidth=1, linestyle=":")
    axis.set_yticks(range(len(found)), [suite.variants[name].label for name in found])
    axis.invert_yaxis()
    axis.set(xlabel=f"accuracy at temperature 1 after {suite.steps} steps (dotted: start)", xlim=(0, 1))
    axis.grid(alpha=0.25, axis="x")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for name, suite in SUITES.items():
        found = read_results(arguments.results / name, suite)
        if not found:
            continue
        text = table(suite, found)
        write_text(arguments.results / f"{name}.md", text)
        plot(suite, found, arguments.results / f"{name}.png")
        print(f"== {suite.title}\n{text}")


if __name__ == "__main__":
    main()
