# SPDX-License-Identifier: Apache-2.0
"""Variants of PRIME against RLOO with the outcome verifier only: curves, and what it takes to an accuracy, with errors.

    python -m recipes.compare_variants.compare outputs/compare_variants

Reads the results of the suite ``methods`` of ``recipes.ablations.run`` and writes ``comparison.json``,
``comparison.png`` and ``comparison.md``. A standard error is over seeds: the warm-started policy and the held-out
problems are the same in all runs.
"""

import argparse
from pathlib import Path

import numpy as np

from prime_ext.run.metrics_file import read_metrics
from prime_ext.utils.files import write_json, write_text
from recipes.ablations.report import read_results
from recipes.ablations.suites import SUITES
from recipes.figures import BLUE, GREEN, GREY, ORANGE, draw_mean, new_figure, save
from recipes.run_statistics import PAIR_ACCURACY, crossing, markdown, mean_and_error, training_seconds, versions

SUITE = SUITES["methods"]
BASELINE, METHODS = SUITE.baseline, {name: variant.label for name, variant in SUITE.variants.items()}
COLOURS = {"rloo": ORANGE, "paper": GREEN, "distilled": BLUE, "answer_likelihood": GREY}
THRESHOLDS = (0.5, 0.6, 0.65)
AXES = {"steps": "steps", "prompts": "prompts tried", "seconds": "training seconds"}


def read_run(result: dict, metrics: dict[int, dict[str, float]], steps: list[int]) -> dict:
    """Curve at the given steps, training seconds and PRM accuracy of one run up to the last of them."""
    points = [result["curve"][str(step)] for step in steps]
    accuracy = [point["temperature_1"]["accuracy"] for point in points]
    training = {step: row for step, row in metrics.items() if "timing_s/step" in row and step <= steps[-1]}
    seconds = training_seconds(training)
    tried = {step: row["prime/filter/examined"] for step, row in training.items()}
    reached = {str(threshold): crossing(steps, accuracy, threshold) for threshold in THRESHOLDS}

    def until(values: dict[int, float]) -> dict[str, float | None]:
        """Sums up to where the accuracies are reached, a step that is not finished there in proportion."""

        def total(end: float) -> float:
            return sum(value * min(1.0, max(0.0, end - step + 1)) for step, value in values.items())

        return {name: None if end is None else total(end) for name, end in reached.items()}

    pairs = [row[PAIR_ACCURACY] for row in training.values() if PAIR_ACCURACY in row]
    return {
        "steps": steps,
        "accuracy_temperature_1": accuracy,
        "accuracy_greedy": [point["greedy"]["accuracy"] for point in points],
        "n_problems": points[0]["n_problems"],
        "steps_to": reached,
        "prompts_to": until(tried),
        "seconds_to": until(seconds),
        "seconds_per_step_median": float(np.median(list(seconds.values()))),
        "prm_pair_accuracy_last_10_steps": float(np.mean(pairs[-10:])) if pairs else None,
        "prm_pair_accuracy_first_5_steps": float(np.mean(pairs[:5])) if pairs else None,
        "prompts": int(sum(tried.values())),
    }


def summarize(out: Path) -> dict:
    """The content of ``comparison.json``, of the methods that have runs.

    Raises:
        FileNotFoundError: RLOO, or everything else, has no measured run.
    """
    results = read_results(out / "results" / "methods", SUITE)
    if BASELINE not in results or len(results) < 2:
        raise FileNotFoundError(f"{out} needs results of {BASELINE} and of another method; has {list(results)}")
    # All runs are compared over the same steps.
    curves = [set(map(int, result["curve"])) for by_seed in results.values() for result in by_seed.values()]
    steps = sorted(set.intersection(*curves))
    found: dict[str, dict[str, dict]] = {method: {} for method in results}
    for method, by_seed in results.items():
        for seed, result in by_seed.items():
            metrics = read_metrics(out / "methods" / "runs" / f"{method}_seed{seed}" / "metrics.jsonl")
            found[method][str(seed)] = read_run(result, metrics, steps)
    paired = sorted(set.intersection(*(set(by_seed) for by_seed in found.values())), key=int)
    aggregate, final = {}, {}
    for method, by_seed in found.items():
        chosen = [by_seed[seed] for seed in paired]
        final[method] = np.array([run["accuracy_temperature_1"][-1] for run in chosen])
        aggregate[method] = {
            "final_accuracy_temperature_1": mean_and_error(final[method]),
            "final_accuracy_greedy": mean_and_error([run["accuracy_greedy"][-1] for run in chosen]),
            "seconds_per_step": mean_and_error([run["seconds_per_step_median"] for run in chosen]),
        }
        for what in (f"{axis}_to" for axis in AXES):
            for threshold in map(str, THRESHOLDS):
                values = [run[what][threshold] for run in chosen if run[what][threshold] is not None]
                name = f"{what}_{threshold}"
                aggregate[method][name] = {**mean_and_error(values), "runs": len(chosen)} if values else None
    settings = out / "settings.txt"
    return {
        "seeds": [int(seed) for seed in paired],
        "final_difference_to_rloo_temperature_1": {
            method: mean_and_error(final[method] - final[BASELINE]) for method in found if method != BASELINE
        },
        "aggregate": aggregate,
        "runs": found,
        "steps": steps,
        "settings": settings.read_text().splitlines() if settings.exists() else [],
        "versions": versions(),
        "standard_errors": "over seeds; same warm-started policy and same held-out problems in all runs",
    }


def plot(summary: dict, path: Path) -> None:
    """Mean curves with their standard error, and every single run, thin."""
    figure, ((axis,),) = new_figure(1, 1, (7.5, 4.6))
    for method, by_seed in summary["runs"].items():
        runs = [by_seed[str(seed)] for seed in summary["seeds"]]
        values_RS = np.array([run["accuracy_temperature_1"] for run in runs])
        axis.plot(summary["steps"], values_RS.T, color=COLOURS[method], alpha=0.25, linewidth=1)
        style = {"linewidth": 2.4, "marker": "o", "markersize": 4}
        draw_mean(axis, summary["steps"], values_RS, COLOURS[method], METHODS[method], **style)
    count = runs[0]["n_problems"]
    axis.set(xlabel="policy updates", ylabel=f"accuracy on {count} held-out problems, temperature 1", ylim=(0, 1))
    axis.set_title(f"Variants of PRIME, and RLOO, from the same start, {len(summary['seeds'])} seeds", fontsize=11)
    axis.legend(frameon=False, loc="lower right")
    save(figure, path, dpi=150)


def _cell(value: dict | None, factor: float = 1.0, digits: int = 1) -> str:
    if value is None:
        return "never"
    error = "" if value["standard_error"] is None else f" ± {factor * value['standard_error']:.{digits}f}"
    partial = f" ({value['n']} of {value['runs']} runs)" if value.get("runs", value["n"]) != value["n"] else ""
    return f"{factor * value['mean']:.{digits}f}{error}{partial}"


def table(summary: dict) -> str:
    """Markdown table of the comparison."""
    rows = {
        "accuracy at the end, temperature 1 (%)": ("final_accuracy_temperature_1", 100.0, 1),
        "accuracy at the end, greedy (%)": ("final_accuracy_greedy", 100.0, 1),
        "training seconds per step": ("seconds_per_step", 1.0, 2),
    }
    for threshold in THRESHOLDS:
        for axis, name in AXES.items():
            rows[f"{name} to {threshold:.0%}"] = (f"{axis}_to_{threshold}", 1.0, 0)
    lines = [
        [label, *(_cell(of_method[key], factor, digits) for of_method in summary["aggregate"].values())]
        for label, (key, factor, digits) in rows.items()
    ]
    differences = ", ".join(
        f"{METHODS[method]} {_cell(value, 100.0, 1)}"
        for method, value in summary["final_difference_to_rloo_temperature_1"].items()
    )
    return markdown(["", *(METHODS[method] for method in summary["runs"])], lines) + (
        f"\nMinus RLOO at the end, temperature 1, paired by seed, in points: {differences}. "
        f"± is the standard error over {len(summary['seeds'])} seeds.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the comparison: settings.txt, results/, methods/")
    folder = parser.parse_args().folder
    summary = summarize(folder)
    write_json(folder / "comparison.json", summary)
    plot(summary, folder / "comparison.png")
    write_text(folder / "comparison.md", table(summary))
    print(f"{table(summary)}\n{folder}: comparison.json, comparison.png, comparison.md")


if __name__ == "__main__":
    main()
