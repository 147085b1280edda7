# SPDX-License-Identifier: Apache-2.0
"""The programs for a GPU, with tiny sizes on the CPU: they must not break on the day they are needed."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_every_part_runs_on_the_cpu(tmp_path):
    environment = os.environ | {"DEVICE": "cpu", "RESULTS": str(tmp_path), "LIMIT": "3000"}
    done = subprocess.run(
        ["bash", "tests/gpu/run.sh"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    measured = json.loads((tmp_path / "cpu.json").read_text())
    assert measured["failed"] == []
    assert {"losses", "chunked", "packing", "noise", "engines", "budget", "scorer"} <= measured.keys()
    assert json.loads((tmp_path / "cpu_quickstart.json").read_text())["steps"] == 2
    resumed = json.loads((tmp_path / "cpu_gsm8k.json").read_text())
    assert resumed["steps"] == 4 and resumed["rollout"] == "transformers"


def test_an_unknown_part_is_named():
    done = subprocess.run(
        ["bash", "tests/gpu/run.sh", "everything"],
        cwd=ROOT,
        env=os.environ | {"DEVICE": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "no part everything" in done.stderr
