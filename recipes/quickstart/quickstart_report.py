# SPDX-License-Identifier: Apache-2.0
"""Write ``summary.json`` and ``learning_curve.png`` of a quickstart run.

python -m recipes.quickstart.quickstart_report --run-dir outputs/quickstart
"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from tqdm import tqdm

from prime_ext.utils.files import read_json
from recipes.command_line import read_options
from recipes.quickstart.evaluate import RewardedResponse, load_model, respond, score_response
from recipes.quickstart.run_report import describe_results, read_run, report_run
from recipes.run_statistics import format_mean, standard_errors

# Stored runs of the study `comparison`, on the quickstart's task with these settings and seeds.
COMPARISON = Path(__file__).parents[1] / "studies" / "results" / "comparison.json"
TASK_SETTINGS = {"MEAN_ERROR": "0.25", "SFT_STEPS": "1000", "PROMPTS": "16", "ROLLOUTS": "4"}
SEEDS = ("0", "1", "2")
LABELS = {"rloo": "RLOO, outcome only", "paper": "PRIME as published", "distilled": "PRIME-D"}
COLORS = {"distilled": "#6a3d9a", "rloo": "#b2182b", "paper": "#8a6d3b"}


def read_stored_runs() -> dict[str, list[dict[str, Any]]]:
    """Return the stored runs by method; each has a "curve" of lists and an "end" of numbers."""
    methods = read_json(COMPARISON)["methods"]
    return {name: [methods[name]["runs"][seed] for seed in SEEDS] for name in LABELS}


def draw_stored_runs(axis: Axes, stored: dict[str, list[dict[str, Any]]]) -> None:
    """Draw the mean of the stored runs of each method, with a band of one standard error."""
    for method, color in COLORS.items() if stored else ():
        # The points that all runs have are the evaluations; the others are interpolated.
        curves = [run["curve"] for run in stored[method]]
        steps = sorted(set.intersection(*(set(curve["steps"]) for curve in curves)))
        values_RS = np.array(
            [np.interp(steps, curve["steps"], curve["accuracy"]) for curve in curves]
        )
        mean_S = values_RS.mean(0)
        error_S = standard_errors(values_RS)
        label = f"{LABELS[method]}: {len(curves)} stored runs, held out"
        axis.plot(steps, mean_S, color=color, label=label, linestyle="--", linewidth=1.6)
        axis.fill_between(
            steps, mean_S - error_S, mean_S + error_S, color=color, alpha=0.2, linewidth=0
        )


def compare_method(name: str, stored: dict[str, list[dict[str, Any]]]) -> str:
    """Describe the accuracy of a stored method on this task, and the cost of its steps."""
    ends, baseline = ([run["end"] for run in stored[method]] for method in (name, "rloo"))
    accuracy = format_mean([end["accuracy"] for end in ends], 100, 1)
    cost = sum(end["seconds_per_step"] for end in ends) / sum(
        end["seconds_per_step"] for end in baseline
    )
    return (
        f"{LABELS[name]:<20} {accuracy} % ({len(ends)} seeds), {cost:.2f} times RLOO's seconds a"
        " step"
    )


def report(run_dir: Path) -> dict[str, Any]:
    """Write the two files of the run and return the summary."""
    run = read_run(run_dir)
    same_task = all(run.settings.get(name, value) == value for name, value in TASK_SETTINGS.items())
    stored = read_stored_runs() if same_task else {}

    def score(folder, name, problems, prm, reference, tokenizer, beta) -> list[RewardedResponse]:
        options = {"temperature": 1.0, "seed": int(run.settings["SEED"]), "description": name}
        responses = respond(load_model(folder)[0], tokenizer, problems, **options)
        both = zip(problems, responses, strict=True)
        return [
            score_response(prm, reference, tokenizer, *pair, beta)
            for pair in tqdm(both, desc="scores")
        ]

    more = {
        "steps_right_before": run.before["temperature_1"]["steps_right"],
        "steps_right_after": run.after["temperature_1"]["steps_right"],
        "stored_runs": [compare_method(name, stored) for name in stored],
    }
    title = "on last-digit chains: accuracy of the policy"
    return report_run(
        run, title, score, 500, lambda top, bottom: draw_stored_runs(top, stored), more
    )


def format_report(run_dir: Path, summary: dict[str, Any]) -> str:
    """Format a report on the run for readers, in a few lines."""
    lines = [
        (
            "The model starts low by design: it imitated demonstrators with systematic"
            " misconceptions, and training unlearns"
        ),
        (
            "them from the final answers alone. So the gain shows that the loop learns, not what"
            " it does on real tasks."
        ),
    ]
    if summary["stored_runs"]:
        lines.append(
            "Does it help, and what does it cost? Stored runs (study `comparison`, temperature 1):"
        )
    return describe_results(
        run_dir, summary, [*lines, *(f"  {line}" for line in summary["stored_runs"])]
    )


if __name__ == "__main__":
    options = read_options(__doc__, "run-dir")
    print(format_report(options["run_dir"], report(options["run_dir"])))
