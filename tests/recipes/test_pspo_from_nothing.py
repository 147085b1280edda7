# SPDX-License-Identifier: Apache-2.0
"""PSPO-WRS without labeled steps: the recipe up to its step model, and its report."""

import os
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from forked_workers import python, with_forks

from prime_ext.step_rm.records import read_steps
from prime_ext.step_rm.scorers.local import LocalScorer, StepClassifier
from prime_ext.tasks.last_digit_chain import outcome_reward, parse_prompt
from prime_ext.utils.files import read_json
from recipes.pspo_wrs import rollout_report
from recipes.pspo_wrs.pspo_data import SUPERFLUOUS, USEFUL, WRONG, Step, check_steps

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "pspo_from_nothing_cpu.sh"
PHASES = ["data", "warm_start", "evaluation_before", "responses", "labels", "step_rm"]
SIZES = {"SFT_STEPS": "60", "RESPONSES": "150", "SAMPLES": "2", "TEST_SIZE": "24"}
# The programs of the package, but no training through verl.
PYTHON = """#!/usr/bin/env bash
[[ "$2" != prime_ext.train ]] || { echo "training starts"; exit 9; }
exec "{python}" "$@"
"""


def make_steps(*kinds):
    return [Step("", kind) for kind in kinds]


def test_only_steps_up_to_the_first_wrong_one_are_compared():
    responses = [
        (make_steps(USEFUL, SUPERFLUOUS, WRONG, USEFUL), (0.9, 0.4, 0.2, 0.0)),
        (make_steps(WRONG, WRONG), (0.6, 0.9)),
        (make_steps(USEFUL, USEFUL), (None, 0.7)),
    ]
    # Right: 0.9, 0.4, 0.7; wrong: 0.2, 0.6. Of six pairs, only (0.4, 0.6) is in the wrong order.
    assert rollout_report.compare_with_truth(responses) == pytest.approx(
        {"steps": 5, "auc": 5 / 6, "accuracy": 3 / 5, "majority": 3 / 5}
    )


@pytest.mark.slow
def test_labels_of_rollouts_train_a_step_model_and_every_stage_resumes(tmp_path):
    interpreter = tmp_path / "python"
    interpreter.write_text(PYTHON.replace("{python}", python()))
    interpreter.chmod(0o755)
    run = tmp_path / "run"
    knobs = {"PYTHON": str(interpreter), "OUT": str(run), **SIZES}

    def start():
        return subprocess.run(
            ["bash", RECIPE],
            env=with_forks(os.environ | knobs),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    done = start()
    assert done.returncode == 9 and "training starts" in done.stdout, done.stderr[-3000:]
    timed = [line.split("\t")[0] for line in (run / "seconds.tsv").read_text().splitlines()]
    assert timed == [*PHASES, "pspo_wrs"]
    rows = pq.read_table(run / "labels" / "samples.parquet").to_pylist()
    assert 100 < len(rows) <= 150
    for row in rows:
        question = row["prompt"][-1]["content"]
        text = "".join(row["completions"])
        steps = check_steps(question, text)
        # The program and the task cut responses into the same steps.
        assert [step.text for step in steps] == row["completions"]
        # Bisection labels nothing after the first error, and a right response has none.
        is_right = outcome_reward(text, str(parse_prompt(question).answer)) == 1.0
        assert is_right == (row["label"] == -1)
        labels = [1.0] * len(steps) if is_right else [1.0] * row["label"] + [0.0]
        assert row["labels"] == labels + [None] * (len(steps) - len(labels))
    labeled = list(read_steps(run / "step_rm_rollouts" / "steps.parquet"))
    assert {step.label for step in labeled} == {-1, 1}
    results = read_json(run / "step_rm_rollouts" / "results.json")
    assert results["test"]["steps"] == sum(step.split == "test" for step in labeled)
    scorer = LocalScorer(StepClassifier(run / "step_rm_rollouts" / "model", device="cpu"))
    samples = run / "evaluation_before" / "data_test" / "samples.jsonl"
    measured = rollout_report.measure_policy(samples, scorer)
    assert measured["step_rm"]["steps"] >= 24 and 0 <= measured["score"] <= 1

    # Started again after an interruption of the labels, it makes them from the finished answers.
    (run / "labels" / "samples.parquet").unlink()
    answers = (run / "labels" / "answers.jsonl").read_bytes()
    again = start()
    assert [name for name in PHASES if f"== {name}: done before" in again.stdout] == [
        name for name in PHASES if name != "labels"
    ]
    assert (run / "labels" / "answers.jsonl").read_bytes() == answers
    assert pq.read_table(run / "labels" / "samples.parquet").to_pylist() == rows
