# SPDX-License-Identifier: Apache-2.0
"""The programs for a GPU, with tiny sizes on the CPU, so that they work when needed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import runs
from forked_workers import python
from recipe_calls import get_calls, get_overrides

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
    assert done.returncode == 2 and "no part everything" in done.stderr


@pytest.mark.parametrize("rollout", ["vllm", "transformers"])
@pytest.mark.parametrize("model", ["", "the model"])
def test_what_run_sh_starts_on_a_gpu_passes_the_checks(tmp_path, monkeypatch, model, rollout):
    """Without flash-attn, which ``pip install ".[gpu]"`` leaves out."""
    monkeypatch.delenv("VERL_PLATFORM")
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "recipes.smoke.smoke_verifier")
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(runs, "find_spec", lambda name: None)
    monkeypatch.setattr("prime_ext.preflight.file_checks.has_flash_attention", lambda: False)
    prepare("prime", tmp_path / "inputs")
    path = str(tmp_path / "inputs" / "model") if model else ""
    rows = tmp_path / "inputs" / "train.parquet"
    given = SimpleNamespace(device="cuda", model=path, data="no folder")
    (script, *words), knobs = runs.get_command(given, tmp_path / "out", rollout)
    words, name = get_overrides(
        get_calls(tmp_path, Path(script).name, *words, **knobs)[-1], "prime_ext.train"
    )
    if model:
        words += [f"data.train_files={rows}", f"data.val_files={rows}"]
    else:
        # The script asks the interpreter for them, which is a stand-in here.
        words = [
            *filter(None, words),
            *overrides("prime", tmp_path / "inputs", steps=4, rollout=rollout),
        ]
    config = compose_for_verl(name, words)
    assert [*check_config(config), *check_ray(config), *check_files(config)] == []
    assert config.trainer.device == "cuda" and config.actor_rollout_ref.rollout.name == rollout
