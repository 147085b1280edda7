# SPDX-License-Identifier: Apache-2.0
"""The agent's recipe from data to report: two steps of multi-turn episodes on verl's main."""

import subprocess
from pathlib import Path

import e2e_harness as harness
import pytest
from forked_workers import python, with_forks
from logged_runs import run_logged
from page_reader import read_responses

from prime_ext.generate import export
from prime_ext.run.metrics_file import read_metrics
from prime_ext.transcripts import __main__ as transcripts
from prime_ext.utils.files import write_json
from recipes.agent.agent_data import write_data
from recipes.agent.agent_report import format_report, report
from recipes.agent.play import evaluate

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
KNOBS = {
    "SEED": "0",
    "STEPS": "2",
    "PROMPTS": "4",
    "ROLLOUTS": "4",
    "BETA": "0.2",
    "SAVE_FREQ": "2",
    "PRM_LR": "1e-3",
}
# A policy that can call the calculator, and little more.
SFT_STEPS = 120


def train(run):
    """Make data, run SFT, and train for two steps, as the recipe does."""
    write_data(run / "data", train_size=64, test_size=24, sft_size=8000, mean_error=0.1)
    words = [
        f"--data={run / 'data' / 'sft.parquet'}",
        f"--output-dir={run / 'sft'}",
        f"--steps={SFT_STEPS}",
    ]
    knobs = {**KNOBS, "PYTHON": python(), "PYTHONPATH": str(ROOT)}
    environment = with_forks(harness.environment(run) | knobs)
    subprocess.run(
        [python(), "-m", "recipes.agent.agent_sft", *words], check=True, cwd=ROOT, env=environment
    )
    write_json(run / "evaluation_before.json", evaluate(run / "sft", run / "data" / "test.parquet"))
    (run / "settings.txt").write_text("".join(f"{name}={value}\n" for name, value in KNOBS.items()))
    (run / "seconds.tsv").write_text("prime\t1\n")
    # The tool's rewards are something to learn from also where all answers are wrong.
    overrides = ["variant=paper", "prime/process=steps", "prime.filter.enable=false"]
    overrides += ["prime.process.granularity=turn", "prime.process.estimator=turn_rloo"]
    overrides += ["prime/turns=rewards", "prime.turns.coefficient=0.5"]
    command = [
        "bash",
        "recipes/agent/train.sh",
        str(run),
        str(run / "data"),
        str(run / "sft"),
        *overrides,
    ]
    run_logged(run / "log.txt", command, environment, cwd=ROOT)


def assert_turns_are_shown(run_dir):
    """Check that the page of the last step has the turns' rewards, and marks the tool's words."""
    assert transcripts.main([str(run_dir)]) == 0
    page = (run_dir / "transcripts.html").read_text()
    shown = read_responses(page)
    assert "Step <b>2</b>" in page and len(shown) >= 16
    paid = [one for one in shown if any(one.numbers("reward of the turn"))]
    assert paid and any("other" in one.classes for one in paid)
    assert all(one.notes_with("turn 1 of ") for one in paid)


def test_the_agent_learns_in_several_turns_and_is_reported(tmp_path):
    train(run_dir := tmp_path)
    metrics = read_metrics(run_dir / "metrics.jsonl")
    assert sorted(metrics) == [1, 2]
    for row in metrics.values():
        # Prompt, call, answer, and what follows.
        assert row["num_turns/max"] >= 4 and row["agent/tool_calls/calls"] > 0.5
        outcomes = [
            row[f"agent/calculator/{name}"] for name in ("result", "malformed", "error", "timeout")
        ]
        assert sum(outcomes) == pytest.approx(
            row["agent/tool_calls/calls"] - row["agent/tool_calls/unknown"]
        )
        assert row["prm/grad_norm"] > 0 and row["actor/grad_norm"] > 0
    assert "Traceback" not in (run_dir / "log.txt").read_text()
    for folder, role in (("policy", "actor"), ("prm", "prm")):
        assert (
            export.main([str(run_dir / "checkpoints"), str(run_dir / folder), "--role", role]) == 0
        )
    write_json(
        run_dir / "evaluation_after.json",
        evaluate(run_dir / "policy", run_dir / "data" / "test.parquet"),
    )
    summary = report(run_dir)
    assert summary["steps"] == 2 and summary["calls"]["after"]["calls_per_episode"] > 0.5
    assert summary["process_rewards"]["trained policy"]["responses"] == 24
    assert f"Everything is in {run_dir}" in format_report(run_dir, summary)
    assert_turns_are_shown(run_dir)
    assert (run_dir / "learning_curve.png").stat().st_size > 10_000
