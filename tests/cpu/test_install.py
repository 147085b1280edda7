# SPDX-License-Identifier: Apache-2.0
"""Installing CPU mode in a fresh process: what gets registered, and when; and what it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from logged_runs import RAY_STARTS, ray_was_too_slow

from prime_ext.verl_adapter.cpu.engine import CPUEngineWithLMHead, CPUEngineWithValueHead
from prime_ext.verl_adapter.patches import vllm_layers_utils

ROOT = str(Path(__file__).resolve().parents[2])


def run_python(code, **environment):
    path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    base = os.environ | {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_PLUGINS": "none",
        "PYTHONPATH": path,
    }
    for name in ("VERL_USE_EXTERNAL_MODULES", "RAY_worker_niceness"):
        base.pop(name, None)
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=base | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
def test_everything_is_registered_lazily_and_never_after_the_workers():
    code = """
import pickle, sys, wrapt
import prime_ext.verl_adapter.cpu.install as cpu
cpu.install(); cpu.install()
list(map(wrapt.register_post_import_hook, cpu.ROLLOUT_HOOKS.values(), cpu.ROLLOUT_HOOKS))
assert not {"verl.workers.engine", "verl.trainer"} & set(sys.modules), "install() has to stay cheap"
import torch
from verl.utils.device import get_device_id, get_device_name, get_nccl_backend, get_torch_device
assert (get_device_name(), get_nccl_backend()) == ("cpu", "gloo")
assert torch.zeros(1).to(get_device_id()).device.type == "cpu"
assert torch.device(f"{get_device_name()}:{get_device_id()}") == torch.device("cpu:0")
assert get_torch_device().max_memory_allocated() == 0
assert f"{pickle.loads(pickle.dumps(get_device_id()))}" == "0"
from verl.workers.engine import EngineRegistry
engines = {"language_model": "CPUEngineWithLMHead", "value_model": "CPUEngineWithValueHead"}
for model_type, name in engines.items():
    for backend in ("fsdp", "fsdp2"):
        assert EngineRegistry.get_engine_cls(model_type, backend).__name__ == name
from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl.workers.rollout.base import get_rollout_class
assert RolloutReplicaRegistry.get("transformers").__name__ == "TransformersReplica"
assert get_rollout_class("transformers").__name__ == "TransformersServerAdapter"
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
assert "seeded_single_turn_agent" in _agent_loop_registry
import verl.workers.engine_workers as workers
module = workers.initialize_global_process_group_ray.__module__
assert module == "prime_ext.verl_adapter.patches.distributed"
print("registered")
del sys.modules["prime_ext.verl_adapter.cpu.platform"]
cpu.install()  # too late
"""
    result = run_python(code)
    assert result.stdout.strip().endswith("registered"), result.stderr
    assert "has to be installed before verl.workers.engine_workers is imported" in result.stderr


@pytest.mark.slow
def test_a_process_without_the_variable_is_left_alone():
    code = """
import prime_ext.verl_adapter.cpu as cpu
assert not cpu.is_active()
import verl
from verl.plugin.platform import PlatformRegistry
assert PlatformRegistry.get("cpu") is None
print("untouched")
"""
    assert run_python(code, VERL_PLATFORM="").stdout.strip().endswith("untouched")


@pytest.mark.slow
@pytest.mark.parametrize(("given", "niceness"), [({}, "0"), ({"RAY_worker_niceness": "3"}, "3")])
def test_workers_of_ray_are_not_nicer_than_their_driver(given, niceness):
    code = """
import os, verl, ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
print(ray.get(ray.remote(lambda: os.nice(0)).remote()) - os.nice(0))
"""
    environment = {"VERL_USE_EXTERNAL_MODULES": "prime_ext.plugin", **given}
    for _ in range(RAY_STARTS):
        done = run_python(code, **environment)
        if not ray_was_too_slow(done.stderr):
            break
    assert done.stdout.strip() == niceness, done.stderr


def test_a_vllm_without_the_patched_function_is_refused():
    with pytest.raises(
        RuntimeError, match="dispatch_cpu_unquantized_gemm, which this vLLM does not have"
    ):
        vllm_layers_utils.apply(json)


@pytest.mark.parametrize("engine", [CPUEngineWithLMHead, CPUEngineWithValueHead])
@pytest.mark.parametrize(
    ("strategy", "offload_policy", "advice"),
    [("fsdp", False, "set strategy=fsdp2"), ("fsdp2", True, "offload_policy=False")],
)
def test_what_the_cpu_cannot_do_is_refused_with_advice(engine, strategy, offload_policy, advice):
    with pytest.raises(ValueError, match=advice):
        engine(None, SimpleNamespace(strategy=strategy, offload_policy=offload_policy))
