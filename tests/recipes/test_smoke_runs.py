# SPDX-License-Identifier: Apache-2.0
"""SHRINK=1: the scripts for GPUs themselves, two steps on the CPU, and what a run leaves behind.

Here are the kinds of training; test_recipes.py composes every script, and tests/e2e/test_two_nodes.py runs PRIME's.
"""

import math

import pytest
from recipe_calls import run_shrunk
from safetensors import safe_open

from prime_ext.run.checkpoint import complete_steps
from prime_ext.run.metrics_file import read_metrics
from prime_ext.utils.files import read_json

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("script", "words", "logged"),
    [
        ("prime/run_eurusprm-stage2_fsdp.sh", [], ["train/loss", "train/grad_norm"]),
        (
            "pspo_wrs/run_abel-7b_ppo_fsdp.sh",
            ["no/model", "no/step_rm", "no.parquet", "no.parquet"],
            ["critic/vf_loss"],
        ),
    ],
)
def test_two_steps_with_finite_metrics_a_checkpoint_and_conditions_that_hold(tmp_path, script, words, logged):
    folder = run_shrunk(tmp_path, script, *words)
    assert "all checks of the run hold" in (tmp_path / "log.txt").read_text(errors="replace")
    metrics = read_metrics(folder / "metrics.jsonl")
    assert all(math.isfinite(metrics[step][name]) for step in (1, 2) for name in logged)
    assert any(name.startswith("val") for name in metrics[2])
    assert 2 in complete_steps(folder / "checkpoints")
    if (folder / "hf").exists():
        # A PRM that starts at its reference is at log 2 with every loss.
        assert metrics[1]["train/loss"] == pytest.approx(math.log(2), rel=1e-3)
        assert read_json(folder / "hf" / "prime_ext_prm.json")["loss"] == "step_ce"
        with safe_open(folder / "hf" / "model.safetensors", "pt") as weights:
            assert all(weights.get_tensor(name).isfinite().all() for name in weights.keys())


def test_step_reward_model(tmp_path):
    folder = run_shrunk(tmp_path, "pspo_wrs/run_bert-large_step-rm_ddp.sh", "no/model", "no.jsonl")
    assert "all checks of the run hold" in (tmp_path / "log.txt").read_text(errors="replace")
    results = read_json(folder / "results.json")
    assert results["steps"] == 2 and 0 <= results["validation"]["accuracy"] <= 1
    assert (folder / "model" / "config.json").is_file() and (folder / "steps.parquet").is_file()
