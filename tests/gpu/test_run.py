# SPDX-License-Identifier: Apache-2.0
"""The programs for a GPU, with tiny sizes on the CPU: they must not break on the day they are needed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prime_ext.config.compose import compose_config
from prime_ext.preflight.check import check_config
from recipes.smoke.prepare import overrides, prepare

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"DEVICE": "cpu", "PYTHON": sys.executable}


@pytest.mark.slow
def test_the_measurements_run_on_the_cpu(tmp_path):
    environment = ENVIRONMENT | {"RESULTS": str(tmp_path), "LIMIT": "3000"}
    command = ["bash", "tests/gpu/run.sh", "measure"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    measured = json.loads((tmp_path / "cpu.json").read_text())
    assert measured["failed"] == [] and {"engines", "budget"} <= measured.keys()


def test_an_unknown_part_is_named():
    command, environment = ["bash", "tests/gpu/run.sh", "everything"], ENVIRONMENT
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "no part everything" in done.stderr


@pytest.mark.parametrize("rollout", ["vllm", "transformers"])
def test_a_shrunk_run_on_a_gpu_has_a_configuration_that_would_start(tmp_path, monkeypatch, rollout):
    monkeypatch.delenv("VERL_PLATFORM")
    prepare("prime", tmp_path)
    config = compose_config("prime_trainer", overrides("prime", tmp_path, rollout=rollout))
    assert check_config(config) == []
    assert config.trainer.device == "cuda" and config.actor_rollout_ref.rollout.name == rollout
