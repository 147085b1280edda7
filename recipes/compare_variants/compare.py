# SPDX-License-Identifier: Apache-2.0
"""Variants of PRIME against RLOO with the outcome verifier only: curves, and what it takes to an accuracy, with errors.

    python -m recipes.compare_variants.compare evaluate --run RUN --start SFT --data test.parquet
    python -m recipes.compare_variants.compare summarize --runs RUNS --output-dir FOLDER

``evaluate`` measures every checkpoint of one run on the held-out problems; ``summarize`` reads
``RUNS/<method>_seed<k>`` and writes ``comparison.json``, ``comparison.png`` and ``comparison.md``. A standard error is
over seeds: the warm-started policy and the held-out problems are the same in all runs.
"""

import argparse
import re
from pathlib import Path

import numpy as np

from prime_ext.run.checkpoint import complete_steps
from prime_ext.run.metrics_file import read_metrics
from prime_ext.utils.files import read_json, write_json, write_text
from recipes.figures import BLUE, GREEN, ORANGE, draw_mean, new_figure, save
from recipes.quickstart.evaluate import evaluate
from recipes.quickstart.learning_curve import BASELINE, METHODS
from recipes.run_statistics import PAIR_ACCURACY, crossing, markdown, mean_and_error, training_seconds, versions

COLOURS = {"rloo": ORANGE, "paper": GREEN, "distilled": BLUE}
THRESHOLDS = (0.5, 0.6, 0.65)
AXES = {"steps": "steps", "prompts": "prompts tried", "seconds": "training seconds"}


def evaluate_run(run: Path, data: Path, start: Path, seed: int) -> None:
    """Accuracy of the start and of every checkpoint; writes ``curve.json``. Finished evaluations are kept."""
    curve = read_curve(run) if (run / "curve.json").exists() else {}
    policies = {0: start}
    for step in complete_steps(run / "checkpoints"):
        policies[step] = run / "checkpoints" / f"global_step_{step}" / "actor" / "huggingface"
    for step, policy in policies.items():
        if step not in curve:
            result = evaluate(policy, data, seed=seed)
            curve[step] = {name: result[name]["accuracy"] for name in ("temperature_1", "greedy")}
            curve[step]["n_problems"] = result["n_problems"]
            write_json(run / "curve.json", curve)
    print(f"{run / 'curve.json'}: {len(curve)} policies")


def read_curve(run: Path) -> dict[int, dict]:
    """What ``evaluate`` measured, by step."""
    return {int(step): value for step, value in read_json(run / "curve.json").items()}


def read_run(run: Path, steps: list[int]) -> dict:
    """Curve at the given steps, training seconds and PRM accuracy of one run up to the last of them."""
    curve, metrics = read_curve(run), read_metrics(run / "metrics.jsonl")
    accuracy = [curve[step]["temperature_1"] for step in steps]
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
        "accuracy_greedy": [curve[step]["greedy"] for step in steps],
        "n_problems": curve[steps[0]]["n_problems"],
        "steps_to": reached,
        "prompts_to": until(tried),
        "seconds_to": until(seconds),
        "seconds_per_step_median": float(np.median(list(seconds.values()))),
        "prm_pair_accuracy_last_10_steps": float(np.mean(pairs[-10:])) if pairs else None,
        "prm_pair_accuracy_first_5_steps": float(np.mean(pairs[:5])) if pairs else None,
        "prompts": int(sum(tried.values())),
    }


def summarize(runs: Path) -> dict:
    """The content of ``comparison.json``, of the methods that have runs.

    Raises:
        FileNotFoundError: RLOO, or everything else, has no evaluated run.
    """
    folders = {}
    for folder in sorted(runs.glob("*_seed*")):
        match = re.fullmatch(r"(\w+)_seed(\d+)", folder.name)
        if match and match[1] in METHODS and (folder / "curve.json").exists():
            folders[match[1], match[2]] = folder
    methods = [method for method in METHODS if any(name == method for name, _ in folders)]
    if BASELINE not in methods or len(methods) < 2:
        raise FileNotFoundError(f"{runs} needs evaluated runs {BASELINE}_seed* and of another method; has {methods}")
    # All runs are compared over the same steps.
    steps = sorted(set.intersection(*(set(read_curve(folder)) for folder in folders.values())))
    found: dict[str, dict[str, dict]] = {method: {} for method in methods}
    for (method, seed), folder in folders.items():
        found[method][seed] = read_run(folder, steps)
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
    settings = runs / "settings.txt"
    return {
        "seeds": [int(seed) for seed in paired],
        "final_difference_to_rloo_temperature_1": {
            method: mean_and_error(final[method] - final[BASELINE]) for method in methods if method != BASELINE
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
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("evaluate", help="measure every checkpoint of one run")
    one.add_argument("--run", type=Path, required=True)
    one.add_argument("--start", type=Path, required=True, help="the warm-started policy")
    one.add_argument("--data", type=Path, required=True)
    one.add_argument("--seed", type=int, default=0, help="of the sampling; the same for all runs")
    every = commands.add_parser("summarize", help="join the runs")
    every.add_argument("--runs", type=Path, required=True)
    every.add_argument("--output-dir", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.command == "evaluate":
        evaluate_run(arguments.run, arguments.data, arguments.start, arguments.seed)
        return
    summary, folder = summarize(arguments.runs), arguments.output_dir
    write_json(folder / "comparison.json", summary)
    plot(summary, folder / "comparison.png")
    write_text(folder / "comparison.md", table(summary))
    print(f"{table(summary)}\n{folder}: comparison.json, comparison.png, comparison.md")


if __name__ == "__main__":
    main()
