# SPDX-License-Identifier: Apache-2.0
"""SHRINK=1 of the offline recipes for GPUs: two steps on the CPU, and what a run leaves behind."""

import math

import pytest
from recipe_calls import run_shrunk
from safetensors import safe_open

from prime_ext.run.checkpoint import complete_steps
from prime_ext.run.metrics_file import read_metrics
from prime_ext.utils.files import read_json

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("script", "words", "loss"),
    [
        ("prime/run_eurusprm-stage1_fsdp.sh", [], "ce"),
        ("prime/run_eurusprm-stage2_fsdp.sh", [], "step_ce"),
        ("train_implicit_prm.sh", ["no/model", "no.parquet", "prm.loss=dpo"], "dpo"),
    ],
)
def test_an_offline_recipe_makes_two_steps_on_the_cpu(tmp_path, script, words, loss):
    folder = run_shrunk(tmp_path, script, *words, timeout=1800)
    assert "all 4 conditions hold" in (tmp_path / "log.txt").read_text(errors="replace")
    metrics = read_metrics(folder / "metrics.jsonl")
    for step in (1, 2):
        assert math.isfinite(metrics[step]["train/loss"]) and math.isfinite(metrics[step]["train/grad_norm"])
    assert any(name.startswith("val/") for name in metrics[2])
    # A PRM that starts at its reference is at log 2 with every one of these losses.
    assert metrics[1]["train/loss"] == pytest.approx(math.log(2), rel=1e-3)
    assert complete_steps(folder / "checkpoints") == [1, 2]
    assert read_json(folder / "hf" / "prime_ext_prm.json")["loss"] == loss
    with safe_open(folder / "hf" / "model.safetensors", "pt") as weights:
        assert all(weights.get_tensor(name).isfinite().all() for name in weights.keys())
