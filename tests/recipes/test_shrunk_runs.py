# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""SHRINK=1: the scripts for GPUs themselves, two steps on the CPU."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prime_ext.metrics_file import read_metrics
from prime_ext.trainer.checkpoint import complete_steps

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


@pytest.mark.parametrize(
    ("script", "words", "logged"),
    [
        ("prime/run_eurus2-7b_fsdp.sh", [], "prm/loss"),
        ("prime_gsm8k.sh", ["no/model"], "prime/gate/value"),
        ("pspo_wrs_ppo.sh", ["no/model", "no/step_rm", "no.parquet", "no.parquet"], "critic/vf_loss"),
    ],
)
def test_a_recipe_for_gpus_makes_two_steps_on_the_cpu(tmp_path, script, words, logged):
    environment = {**os.environ, "SHRINK": "1", "PYTHON": sys.executable, "OUTPUT_DIR": str(tmp_path)}
    log = tmp_path / "log.txt"
    with log.open("w") as stream:
        command = ["bash", str(RECIPES / script), *words]
        done = subprocess.run(command, env=environment, stdout=stream, stderr=stream, timeout=900, check=False)
    assert done.returncode == 0, "\n".join(log.read_text(errors="replace").splitlines()[-60:])
    assert "conditions hold" in log.read_text(errors="replace")
    metrics = read_metrics(tmp_path / "shrunk" / "metrics.jsonl")
    assert {1, 2} <= set(metrics)
    for step in (1, 2):
        assert math.isfinite(metrics[step][logged]) and math.isfinite(metrics[step]["actor/grad_norm"])
    assert any(name.startswith("val-") for name in metrics[2])
    assert 2 in complete_steps(tmp_path / "shrunk" / "checkpoints")
