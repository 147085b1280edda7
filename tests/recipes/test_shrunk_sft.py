# SPDX-License-Identifier: Apache-2.0
"""SHRINK=1 of the supervised recipes: the scripts for GPUs themselves, two steps on the CPU."""

import json
import math

import pytest
from recipe_calls import run_shrunk

from prime_ext.run.metrics_file import read_metrics

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("pspo_wrs/run_abel-7b_sft_fsdp.sh", ["no/model", "no.parquet"]),
        ("prime/run_eurus2-7b_sft_fsdp.sh", ["no.parquet"]),
    ],
)
def test_verls_sft_trainer_makes_two_steps_on_the_cpu(tmp_path, script, words):
    folder = run_shrunk(tmp_path, script, *words)
    assert "all 5 conditions hold" in (tmp_path / "log.txt").read_text(errors="replace")
    metrics = read_metrics(folder / "metrics.jsonl")
    assert {1, 2} <= set(metrics)
    for step in (1, 2):
        assert math.isfinite(metrics[step]["train/loss"]) and metrics[step]["train/grad_norm"] > 0
    assert math.isfinite(metrics[2]["val/loss"])
    checkpoint = folder / "checkpoints" / "global_step_2"
    assert list(checkpoint.glob("**/model_world_size_1_rank_0.pt")) and list(checkpoint.glob("**/config.json"))


def test_the_step_reward_model_is_trained_and_written_on_the_cpu(tmp_path):
    folder = run_shrunk(tmp_path, "pspo_wrs/run_bert-large_step-rm_ddp.sh", "no/model", "no.jsonl")
    assert "all 2 conditions hold" in (tmp_path / "log.txt").read_text(errors="replace")
    results = json.loads((folder / "results.json").read_text())
    assert results["steps"] == 2 and 0 <= results["validation"]["accuracy"] <= 1
    assert (folder / "model" / "config.json").is_file() and (folder / "steps.parquet").is_file()
