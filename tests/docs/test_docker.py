# SPDX-License-Identifier: Apache-2.0
"""The image for machines without a GPU, where something can build it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "prime_ext_cpu_test"


def docker(*words, seconds=60):
    return subprocess.run(["docker", *words], cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.mark.slow
def test_the_image_is_built_and_its_doctor_finds_nothing_missing():
    # Asked here, so that nothing is started where this test is only collected.
    if shutil.which("docker") is None or docker("info").returncode != 0:
        pytest.skip("no builder of images")
    torch = os.environ.get("TORCH_INSTALL_ARGS", "torch==2.13.0")
    words = ["build", "-t", IMAGE, "-f", "Dockerfile.cpu", "--build-arg", f"TORCH_INSTALL_ARGS={torch}", "."]
    built = docker(*words, seconds=1800)
    assert built.returncode == 0, built.stderr[-3000:]
    told = docker("run", "--rm", "--shm-size=2g", "-e", "VERL_PLATFORM=cpu", IMAGE, "prime-ext", "doctor", seconds=300)
    assert told.returncode == 0, told.stdout + told.stderr
