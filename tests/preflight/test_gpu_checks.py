# SPDX-License-Identifier: Apache-2.0
"""GPUs that cannot train, and machines without compiler, header or flash-attn, are refused."""

import sys

import fake_gpus
import pytest
import torch

from prime_ext.preflight.gpu_checks import check_gpu_machine


@pytest.mark.parametrize(
    ("name", "capability", "said"),
    [
        ("Tesla V100-SXM2-32GB", (7, 0), "V100-SXM2-32GB has compute capability 7.0, without bf16"),
        ("Tesla T4", (7, 5), "T4 has compute capability 7.5"),
        ("NVIDIA A100-SXM4-80GB", (8, 0), None),
        ("NVIDIA B200", (10, 0), None),
    ],
)
def test_devices_older_than_ampere_are_refused(monkeypatch, tmp_path, name, capability, said):
    fake_gpus.install(monkeypatch, tmp_path, name, capability)
    lines = list(check_gpu_machine())
    assert lines == [] if said is None else len(lines) == 1 and said in lines[0]


def test_builds_for_amd_are_refused(monkeypatch, tmp_path):
    fake_gpus.install(monkeypatch, tmp_path, "AMD Instinct MI300X", (9, 4))
    monkeypatch.setattr(torch.version, "hip", "7.1.0")
    (line,) = check_gpu_machine()
    assert "is built for AMD GPUs (HIP 7.1.0)" in line and "NVIDIA" in line


def test_a_missing_compiler_or_header_is_named_with_its_packages(monkeypatch, tmp_path):
    fake_gpus.install(monkeypatch, tmp_path)
    python = f"python3.{sys.version_info.minor}-dev"
    (tmp_path / "Python.h").unlink()
    (line,) = check_gpu_machine()
    assert f"{tmp_path}/Python.h cannot be found" in line
    assert f"apt-get install build-essential {python}" in line and f"{python}el)" in line
    (tmp_path / "gcc").unlink()
    (line,) = check_gpu_machine()
    assert "Python.h and a C compiler cannot be found" in line
    fake_gpus.write_program(tmp_path / "clang")
    (tmp_path / "Python.h").touch()
    assert list(check_gpu_machine()) == []
    monkeypatch.setenv("CC", "icc")
    (line,) = check_gpu_machine()
    assert "CC=icc cannot be found" in line


def test_a_machine_without_gpus_needs_nothing(monkeypatch, tmp_path):
    fake_gpus.install(monkeypatch, tmp_path, count=0)
    (tmp_path / "gcc").unlink()
    (tmp_path / "Python.h").unlink()
    assert list(check_gpu_machine()) == []
