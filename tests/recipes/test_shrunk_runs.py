# SPDX-License-Identifier: Apache-2.0
"""SHRINK=1: the scripts for GPUs themselves, two steps on the CPU.

Not here: those that are run_eurus2-7b_fsdp.sh with other numbers (their dry runs are tested), and prime_gsm8k.sh, which
tests/gpu/test_run.py kills and starts again.
"""

import math

import pytest
from recipe_calls import run_shrunk

from prime_ext.run.checkpoint import complete_steps
from prime_ext.run.metrics_file import read_metrics

pytestmark = pytest.mark.slow


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
def test_a_recipe_for_gpus_makes_two_steps_on_the_cpu(tmp_path, script, words, logged):
    folder = run_shrunk(tmp_path, script, *words)
    assert "conditions hold" in (tmp_path / "log.txt").read_text(errors="replace")
    metrics = read_metrics(folder / "metrics.jsonl")
    assert {1, 2} <= set(metrics)
    for step in (1, 2):
        assert math.isfinite(metrics[step][logged]) and math.isfinite(metrics[step]["actor/grad_norm"])
    assert any(name.startswith("val-") for name in metrics[2])
    assert 2 in complete_steps(folder / "checkpoints")
