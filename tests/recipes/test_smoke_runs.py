# SPDX-License-Identifier: Apache-2.0
"""SHRINK=1: the scripts for GPUs themselves, two steps on the CPU, and what a run leaves behind.

Not here: those that are run_eurus2-7b_fsdp.sh with other numbers (their dry runs are tested), and prime_gsm8k.sh, which
tests/gpu/test_run.py kills and starts again.
"""

import math

import pytest
from recipe_calls import run_shrunk
from safetensors import safe_open

from prime_ext.run.checkpoint import complete_steps
from prime_ext.run.metrics_file import read_metrics
from prime_ext.utils.files import read_json

pytestmark = pytest.mark.slow


def two_steps(tmp_path, script, words, *logged):
    """Folder and metrics of a run that made two steps with finite metrics and found its conditions met."""
    folder = run_shrunk(tmp_path, script, *words)
    assert "conditions hold" in (tmp_path / "log.txt").read_text(errors="replace")
    metrics = read_metrics(folder / "metrics.jsonl")
    assert all(math.isfinite(metrics[step][name]) for step in (1, 2) for name in logged)
    assert any(name.startswith("val") for name in metrics[2])
    return folder, metrics


@pytest.mark.parametrize(
    ("script", "words", "logged"),
    [
        ("prime/run_eurus2-7b_code_fsdp.sh", [], "prm/loss"),
        ("prime/run_eurus2-7b_fsdp.sh", [], "prm/loss"),
        ("prime/run_eurus2-7b_lora-prm_fsdp.sh", [], "prm/loss"),
        ("prime/run_eurus2-7b_separate-async_fsdp.sh", [], "prime/staleness/mean"),
        ("prime/run_qwen2.5-7b_prm-sizes_fsdp.sh", [], "prm/loss"),
        ("pspo_wrs/run_abel-7b_ppo_fsdp.sh", ["no/model", "no/step_rm", "no.parquet", "no.parquet"], "critic/vf_loss"),
    ],
)
def test_rl(tmp_path, script, words, logged):
    folder, _ = two_steps(tmp_path, script, words, logged, "actor/grad_norm")
    assert 2 in complete_steps(folder / "checkpoints")


@pytest.mark.parametrize(
    ("script", "words", "loss"),
    [
        ("prime/run_eurusprm-stage1_fsdp.sh", [], "ce"),
        ("prime/run_eurusprm-stage2_fsdp.sh", [], "step_ce"),
        ("train_implicit_prm.sh", ["no/model", "no.parquet", "prm.loss=dpo"], "dpo"),
    ],
)
def test_offline_prm(tmp_path, script, words, loss):
    folder, metrics = two_steps(tmp_path, script, words, "train/loss", "train/grad_norm")
    # A PRM that starts at its reference is at log 2 with every one of these losses.
    assert metrics[1]["train/loss"] == pytest.approx(math.log(2), rel=1e-3)
    assert complete_steps(folder / "checkpoints") == [1, 2]
    assert read_json(folder / "hf" / "prime_ext_prm.json")["loss"] == loss
    with safe_open(folder / "hf" / "model.safetensors", "pt") as weights:
        assert all(weights.get_tensor(name).isfinite().all() for name in weights.keys())


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("pspo_wrs/run_abel-7b_sft_fsdp.sh", ["no/model", "no.parquet"]),
        ("prime/run_eurus2-7b_sft_fsdp.sh", ["no.parquet"]),
    ],
)
def test_supervised_fine_tuning(tmp_path, script, words):
    folder, _ = two_steps(tmp_path, script, words, "train/loss", "train/grad_norm")
    checkpoint = folder / "checkpoints" / "global_step_2"
    assert list(checkpoint.glob("**/model_world_size_1_rank_0.pt")) and list(checkpoint.glob("**/config.json"))


def test_step_reward_model(tmp_path):
    folder = run_shrunk(tmp_path, "pspo_wrs/run_bert-large_step-rm_ddp.sh", "no/model", "no.jsonl")
    assert "all 2 conditions hold" in (tmp_path / "log.txt").read_text(errors="replace")
    results = read_json(folder / "results.json")
    assert results["steps"] == 2 and 0 <= results["validation"]["accuracy"] <= 1
    assert (folder / "model" / "config.json").is_file() and (folder / "steps.parquet").is_file()
