# SPDX-License-Identifier: Apache-2.0
"""SHRINK=1: the scripts for GPUs themselves, two steps on the CPU, and what a run leaves behind.

Not here: those that are another one with other numbers (test_recipes.py composes them), and prime_gsm8k.sh, which
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


@pytest.mark.parametrize(
    ("script", "words", "logged"),
    [
        ("prime/run_eurus2-7b_fsdp.sh", [], ["prm/loss", "actor/grad_norm"]),
        ("prime/run_eurus2-7b_code_fsdp.sh", [], ["prm/loss", "actor/grad_norm"]),
        ("prime/run_eurus2-7b_lora-prm_fsdp.sh", [], ["prm/loss", "actor/grad_norm"]),
        ("prime/run_eurus2-7b_separate-async_fsdp.sh", [], ["prime/staleness/mean", "actor/grad_norm"]),
        ("agent/run_qwen2.5-3b_gsm8k_fsdp.sh", [], ["prime/turns/mean", "actor/grad_norm"]),
        ("prime/run_eurus2-7b_sft_fsdp.sh", ["no.parquet"], ["train/loss", "train/grad_norm"]),
        ("prime/run_eurusprm-stage2_fsdp.sh", [], ["train/loss", "train/grad_norm"]),
        ("train_implicit_prm.sh", ["no/model", "no.parquet", "prm.loss=dpo"], ["train/loss", "train/grad_norm"]),
        (
            "pspo_wrs/run_abel-7b_ppo_fsdp.sh",
            ["no/model", "no/step_rm", "no.parquet", "no.parquet"],
            ["critic/vf_loss"],
        ),
    ],
)
def test_two_steps_with_finite_metrics_a_checkpoint_and_conditions_that_hold(tmp_path, script, words, logged):
    folder = run_shrunk(tmp_path, script, *words)
    assert "conditions hold" in (tmp_path / "log.txt").read_text(errors="replace")
    metrics = read_metrics(folder / "metrics.jsonl")
    assert all(math.isfinite(metrics[step][name]) for step in (1, 2) for name in logged)
    assert any(name.startswith("val") for name in metrics[2])
    if "sft" in script:
        checkpoint = folder / "checkpoints" / "global_step_2"
        assert list(checkpoint.glob("**/model_world_size_1_rank_0.pt")) and list(checkpoint.glob("**/config.json"))
    else:
        assert 2 in complete_steps(folder / "checkpoints")
    if (folder / "hf").exists():
        # A PRM that starts at its reference is at log 2 with every loss.
        assert metrics[1]["train/loss"] == pytest.approx(math.log(2), rel=1e-3)
        assert read_json(folder / "hf" / "prime_ext_prm.json")["loss"] == ("dpo" if words else "step_ce")
        with safe_open(folder / "hf" / "model.safetensors", "pt") as weights:
            assert all(weights.get_tensor(name).isfinite().all() for name in weights.keys())


def test_step_reward_model(tmp_path):
    folder = run_shrunk(tmp_path, "pspo_wrs/run_bert-large_step-rm_ddp.sh", "no/model", "no.jsonl")
    assert "all 2 conditions hold" in (tmp_path / "log.txt").read_text(errors="replace")
    results = read_json(folder / "results.json")
    assert results["steps"] == 2 and 0 <= results["validation"]["accuracy"] <= 1
    assert (folder / "model" / "config.json").is_file() and (folder / "steps.parquet").is_file()
