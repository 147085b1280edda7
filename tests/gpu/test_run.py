# SPDX-License-Identifier: Apache-2.0
"""The programs for a GPU, with tiny sizes on the CPU, and the checks of what they start there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import device_run
import pytest
import runs
from forked_workers import python
from recipe_calls import LAUNCHES, get_calls, get_overrides

from prime_ext.preflight.check import check_config, check_files, compose_for_verl
from prime_ext.run.ray_cluster import check_ray
from recipes.smoke.prepare import overrides, prepare

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"DEVICE": "cpu", "PYTHON": sys.executable}


@pytest.mark.slow
def test_the_measurements_run_on_the_cpu(tmp_path):
    environment = ENVIRONMENT | {"RESULTS": str(tmp_path), "LIMIT": "3000", "PYTHON": python()}
    command = ["bash", "tests/gpu/run.sh", "measure"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    measured = json.loads((tmp_path / "cpu.json").read_text())
    assert measured["failed"] == [] and {"engines", "budget"} <= measured.keys()


def test_an_unknown_part_is_named():
    command = ["bash", "tests/gpu/run.sh", "everything"]
    environment = ENVIRONMENT
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "no step everything" in done.stderr


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """Check as on a GPU, without flash-attn, which ``pip install ".[gpu]"`` leaves out."""
    monkeypatch.delenv("VERL_PLATFORM")
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "recipes.smoke.smoke_verifier")
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(runs, "find_spec", lambda name: None)
    monkeypatch.setattr(device_run, "find_spec", lambda name: None)
    monkeypatch.setattr("prime_ext.preflight.file_checks.has_flash_attention", lambda: False)
    prepare("prime", tmp_path / "inputs")
    return tmp_path / "inputs"


def compose_and_check(folder, words, knobs, *more):
    """Compose what a command starts, with inputs in place of those that it would write."""
    call = get_calls(folder, words[0].removeprefix("recipes/"), *words[1:], **knobs)[-1]
    given, name = get_overrides(call, "prime_ext.train")
    # The script asks the interpreter for what comes last, which is a stand-in here.
    config = compose_for_verl(name, [*filter(None, given), *more])
    assert [*check_config(config), *check_ray(config), *check_files(config)] == []
    assert config.trainer.device == "cuda"
    return config


@pytest.mark.parametrize("rollout", ["vllm", "transformers"])
@pytest.mark.parametrize("model", ["", "the model"])
def test_what_run_sh_starts_on_a_gpu_passes_the_checks(tmp_path, gpu, model, rollout):
    path = str(gpu / "model") if model else ""
    rows = gpu / "train.parquet"
    given = SimpleNamespace(device="cuda", model=path, data="no folder")
    words, knobs = runs.get_command(given, tmp_path / "out", rollout)
    more = [f"data.train_files={rows}", f"data.val_files={rows}"]
    if not model:
        more = overrides("prime", gpu, steps=4, rollout=rollout)
    config = compose_and_check(tmp_path, words, knobs, *more)
    assert config.actor_rollout_ref.rollout.name == rollout


@pytest.mark.parametrize("name", ["shrunk", "resume", "gsm8k", "distilled"])
def test_the_first_runs_on_a_gpu_pass_the_checks(tmp_path, gpu, name):
    place = device_run.Place("cuda", sys.executable, tmp_path / "results", tmp_path / "work")
    (step,) = (step for step in device_run.build_first_run(place) if step.name == name)
    for target, source in step.copies.items():
        (step.fresh / target).parent.mkdir(parents=True, exist_ok=True)
        if target.endswith(".parquet"):
            shutil.copy(gpu / source.name, step.fresh / target)
    if "SHRINK" in step.knobs:
        steps = step.metrics[1]
        more = overrides("prime", gpu, steps=steps, rollout=step.knobs["SHRINK_ROLLOUT"])
    else:
        more = [f"actor_rollout_ref.model.path={gpu / 'model'}"]
    config = compose_and_check(tmp_path, step.words[1:], {**step.knobs, "DEVICE": "cuda"}, *more)
    assert config.actor_rollout_ref.rollout.name == "vllm"
    assert config.trainer.total_training_steps == step.metrics[1]
    assert config.trainer.n_gpus_per_node == 1
    if name in ("gsm8k", "distilled"):
        assert config.prime.variant == {"gsm8k": "guarded"}.get(name, name)


def test_a_shrunk_run_leaves_room_for_vllm_on_24_gb(gpu):
    rollout = compose_for_verl("prime_trainer", overrides("prime", gpu, rollout="vllm"))
    rollout = rollout.actor_rollout_ref.rollout
    # Weights, workspaces and graphs take more than 1.2 GiB; the cache takes what its blocks need.
    assert rollout.gpu_memory_utilization * 24 >= 4
    assert rollout.engine_kwargs.vllm.num_gpu_blocks_override == 2048


@pytest.mark.parametrize(("given", "expected"), [({}, "1"), ({"TORCH_COMPILE_DISABLE": "0"}, "0")])
def test_a_shrunk_run_compiles_only_if_asked(tmp_path, given, expected):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\n{LAUNCHES}\necho "disabled: $TORCH_COMPILE_DISABLE"\n')
    python.chmod(0o755)
    knobs = {"SHRINK": "gpu", "PYTHON": str(python), "OUTPUT_DIR": str(tmp_path / "out")}
    kept = {name: value for name, value in os.environ.items() if name != "TORCH_COMPILE_DISABLE"}
    done = subprocess.run(
        ["bash", "recipes/prime/run_eurus2-7b_fsdp.sh"],
        cwd=ROOT,
        env={**kept, **knobs, **given},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] == f"disabled: {expected}"
