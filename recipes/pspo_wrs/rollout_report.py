# SPDX-License-Identifier: Apache-2.0
"""Write ``summary.json`` of a run whose steps were labeled by rollouts, and print a table.

    python -m recipes.pspo_wrs.rollout_report --run-dir outputs/pspo_from_nothing

The task knows which steps are right, so labels and step reward model are compared with the truth.
Steps count up to the first wrong one of a response: after it, a rollout's label says whether the
answer can still be right, and not whether the step is.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from prime_ext.step_rm.scorers.local import LocalScorer, StepClassifier
from prime_ext.step_rm.scorers.protocol import Chain
from prime_ext.utils.files import read_json, read_lines, write_json
from recipes.command_line import read_options
from recipes.pspo_wrs.measure import describe_scores, describe_steps
from recipes.pspo_wrs.pspo_data import WRONG, Step, check_steps
from recipes.pspo_wrs.pspo_report import describe_policy
from recipes.pspo_wrs.step_rm import ROLLOUTS
from recipes.quickstart.evaluate import area_under_curve
from recipes.quickstart.run_report import describe_run, format_seconds

# The task of eval.run for the held-out problems, data/test.parquet.
TASK = "data_test"
# A score or hard label above it says that the step is right.
THRESHOLD = 0.5
# The steps of a response, and a number for each, None for none.
Numbered = tuple[Sequence[Step], Sequence[float | None]]


def compare_with_truth(responses: Sequence[Numbered]) -> dict[str, Any]:
    """Return ``auc`` and ``accuracy`` (above :data:`THRESHOLD`) of numbers for right steps.

    ``majority`` is the accuracy of the more frequent answer for all steps.
    """
    numbers: list[float] = []
    right: list[bool] = []
    for steps, values in responses:
        for step, value in zip(steps, values, strict=True):
            if value is not None:
                numbers.append(value)
                right.append(step.kind != WRONG)
            if step.kind == WRONG:
                break
    hits = [(value > THRESHOLD) == truth for value, truth in zip(numbers, right, strict=True)]
    share = sum(right) / len(right)
    return {
        "steps": len(right),
        "auc": area_under_curve(numbers, right),
        "accuracy": sum(hits) / len(hits),
        "majority": max(share, 1 - share),
    }


def measure_labels(path: Path) -> dict[str, Any]:
    """Compare hard labels with the truth."""
    rows = pq.read_table(path, columns=["prompt", "completions", "labels"]).to_pylist()
    numbered = [
        (check_steps(row["prompt"][-1]["content"], "".join(row["completions"])), row["labels"])
        for row in rows
    ]
    return {"responses": len(rows), **compare_with_truth(numbered)}


def measure_policy(samples: Path, scorer: LocalScorer) -> dict[str, Any]:
    """Describe the steps of evaluated responses, their scores, and how good the scores are."""
    rows = [json.loads(line) for _, line in read_lines(samples)]
    questions = [row["prompt"][-1]["content"] for row in rows]
    steps = [
        check_steps(question, row["response"])
        for question, row in zip(questions, rows, strict=True)
    ]
    chains = [
        Chain(tuple(step.text for step in of_response), question=question)
        for question, of_response in zip(questions, steps, strict=True)
    ]
    scores = scorer.score_now(chains)
    values = [scored.scores for scored in scores]
    return {
        "step_rm": compare_with_truth(list(zip(steps, values, strict=True))),
        "steps": describe_steps(steps),
        "cut_off": sum(row["truncated"] for row in rows) / len(rows),
        **describe_scores(steps, scores),
    }


def report(run_dir: Path) -> dict[str, Any]:
    """Write the summary and return it."""
    step_rm = run_dir / f"step_rm_{ROLLOUTS}"
    scorer = LocalScorer(StepClassifier(step_rm / "model", device="cpu"))
    summary = {
        "accuracy": read_json(run_dir / "comparison" / "compare.json")["tasks"][TASK],
        "labels": measure_labels(run_dir / "labels" / "samples.parquet"),
        "step_rm": read_json(step_rm / "results.json")["test"],
        **{
            when: measure_policy(run_dir / f"evaluation_{when}" / TASK / "samples.jsonl", scorer)
            for when in ("before", "after")
        },
        **describe_run(run_dir),
    }
    # Written last: if it exists, so does the rest.
    write_json(run_dir / "summary.json", summary)
    return summary


def format_report(run_dir: Path, summary: Mapping[str, Any]) -> str:
    """Format a report on the run for readers."""
    compared = {
        f"labels of {summary['labels']['responses']:,} responses": summary["labels"],
        "step model, responses of the start": summary["before"]["step_rm"],
        "step model, responses of the end": summary["after"]["step_rm"],
    }
    before, after = (describe_policy(summary[when]) for when in ("before", "after"))
    paired = summary["accuracy"]["comparison"]
    gain, low, high = (f"{100 * paired[name]:+.1f}" for name in ("difference", "low", "high"))
    rm = summary["step_rm"]
    lines = [
        "",
        "Against the truth, steps up to the first wrong one (AUC 0.5 is chance):",
        f"  {'':<36}{'steps':>8}{'AUC':>8}{'accuracy':>10}{'majority':>10}",
        *(
            f"  {name:<36}{row['steps']:>8,}{row['auc']:>8.3f}{row['accuracy']:>10.3f}"
            f"{row['majority']:>10.3f}"
            for name, row in compared.items()
        ),
        (
            f"The step model repeats {rm['accuracy']:.3f} of the labels of {rm['steps']:,} steps of"
            f" held-out questions (always the commonest label: {rm['majority']:.3f})."
        ),
        f"  {'':<24}{'warm start':>16}{'PSPO-WRS':>16}",
        *(f"  {name:<24}{before[name]:>16}{after[name]:>16}" for name in before),
        (
            f"Accuracy on {paired['problems']:,} held-out problems: {gain} points, 95 % interval"
            f" {low} to {high}, one seed."
        ),
        format_seconds(summary),
        f"Everything is in {run_dir}: summary.json, transcripts.html, labels/, step_rm_{ROLLOUTS}/",
        "evaluation_before/, evaluation_after/, comparison/ (with reports), sft/ and policy/.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    options = read_options(__doc__, "run-dir")
    print(format_report(options["run_dir"], report(options["run_dir"])))
