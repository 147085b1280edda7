# SPDX-License-Identifier: Apache-2.0
"""Write ``summary.json`` of a run whose steps were labeled by rollouts, and print a table.

    python -m recipes.pspo_wrs.rollout_report --run-dir outputs/pspo_from_nothing

The task knows which steps are right, so labels and step reward model are compared with the truth.
Steps count up to the first wrong one of a response: after it, a rollout's label says whether the
answer can still be right, and not whether the step is.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
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


def check_responses(rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> list[list[Step]]:
    """Return the checked steps of responses to the prompts of rows."""
    pairs = zip(rows, texts, strict=True)
    return [check_steps(row["prompt"][-1]["content"], text) for row, text in pairs]


def compare_with_truth(
    responses: Iterable[tuple[Sequence[Step], Sequence[float | None]]],
) -> dict[str, Any]:
    """Return ``auc`` and ``accuracy`` (above 0.5) of numbers that are high for right steps.

    A step without a number, None, is left out. ``majority`` is the accuracy of the more frequent
    answer for all steps.
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
    hits = [(value > 0.5) == truth for value, truth in zip(numbers, right, strict=True)]
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
    texts = ["".join(row["completions"]) for row in rows]
    numbered = zip(check_responses(rows, texts), [row["labels"] for row in rows], strict=True)
    return {"responses": len(rows), **compare_with_truth(numbered)}


def measure_policy(samples: Path, scorer: LocalScorer) -> dict[str, Any]:
    """Describe the steps of evaluated responses, their scores, and how good the scores are."""
    rows = [json.loads(line) for _, line in read_lines(samples)]
    steps = check_responses(rows, [row["response"] for row in rows])
    chains = [
        Chain(tuple(step.text for step in of_response), question=row["prompt"][-1]["content"])
        for row, of_response in zip(rows, steps, strict=True)
    ]
    scores = scorer.score_now(chains)
    return {
        "step_rm": compare_with_truth(zip(steps, (each.scores for each in scores), strict=True)),
        "steps": describe_steps(steps),
        "cut_off": sum(row["truncated"] for row in rows) / len(rows),
        **describe_scores(steps, scores),
    }


def report(run_dir: Path) -> dict[str, Any]:
    """Write the summary and return it."""
    step_rm = run_dir / f"step_rm_{ROLLOUTS}"
    scorer = LocalScorer(StepClassifier(step_rm / "model", device="cpu"))
    paired = read_json(run_dir / "comparison" / "compare.json")["tasks"][TASK]["comparison"]
    summary = {
        "gain": {"value": paired["difference"], "low": paired["low"], "high": paired["high"]},
        "labels": measure_labels(run_dir / "labels" / "samples.parquet"),
        "step_rm": read_json(step_rm / "results.json")["test"],
    }
    for when in ("before", "after"):
        folder = run_dir / f"evaluation_{when}"
        evaluated = read_json(folder / "results.json")["tasks"][TASK]["summary"]
        summary[when] = {
            "accuracy": evaluated["scores"]["avg@1"],
            **measure_policy(folder / TASK / "samples.jsonl", scorer),
        }
    summary |= describe_run(run_dir)
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
    accuracies = [summary["before"]["accuracy"], summary["after"]["accuracy"], summary["gain"]]
    start, end, gain = (
        "{:.1f} ({:.1f} to {:.1f})".format(*(100 * row[name] for name in ("value", "low", "high")))
        for row in accuracies
    )
    lines = [
        "",
        "Against the truth, steps up to the first wrong one (AUC 0.5 is chance):",
        f"  {'':<36}{'steps':>8}{'AUC':>8}{'accuracy':>10}{'majority':>10}",
        *(
            f"  {name:<36}{row['steps']:>8,}{row['auc']:>8.3f}{row['accuracy']:>10.3f}"
            f"{row['majority']:>10.3f}"
            for name, row in compared.items()
        ),
        f"  {'':<24}{'warm start':>16}{'PSPO-WRS':>16}",
        *(f"  {name:<24}{before[name]:>16}{after[name]:>16}" for name in before),
        f"Accuracy on {accuracies[0]['problems']:,} held-out problems, one seed, in % with 95 %",
        f"intervals: {start} -> {end}, gain {gain}",
        format_seconds(summary),
        f"Everything is in {run_dir}: summary.json, transcripts.html, comparison/compare.md, ...",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    options = read_options(__doc__, "run-dir")
    print(format_report(options["run_dir"], report(options["run_dir"])))
