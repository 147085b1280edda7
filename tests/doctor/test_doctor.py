# SPDX-License-Identifier: Apache-2.0
"""The doctor finds what is wrong with an installation, and prints what to do, one line each."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forked_workers import python

from prime_ext import doctor

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def sound_environment(monkeypatch):
    """Set up a CPU with the plug-in, independent of the shell and of this machine's memory."""
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("VERL_USE_EXTERNAL_MODULES", raising=False)
    monkeypatch.delenv("VERL_USE_EXTERNAL_PLUGINS", raising=False)
    monkeypatch.setattr(doctor, "LEAST_MEMORY_GB", 0.0)
    point = importlib.metadata.EntryPoint("prime_ext", "prime_ext.plugin", "verl.plugins")
    monkeypatch.setattr(doctor, "entry_points", lambda group: [point])


def only_problem(capsys):
    status = doctor.main([])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem: ")]
    assert status == 1 and len(lines) == 1, lines
    return lines[0].removeprefix("problem: ")


@pytest.mark.slow
def test_a_sound_installation_has_no_problem_but_a_short_memory(tmp_path):
    environment = os.environ | {
        "VERL_USE_EXTERNAL_MODULES": "prime_ext.plugin",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [python(), "-m", "prime_ext.doctor"]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    lines = done.stdout.splitlines()
    problems = [line for line in lines if line.startswith("problem: ")]
    assert done.returncode == bool(problems) and lines[-1] == f"{len(problems)} problems found"
    assert all("of memory are available" in problem for problem in problems), problems
    modes = ("sync", "colocate_async", "separate_async")
    trainers = [f"{method}_{mode}" for method in ("prime", "pspo") for mode in modes]
    assert (
        f"{'trainers':<26}{', '.join(trainers)}" in lines and f"{'device of verl':<26}cpu" in lines
    )
    # The version that it asks for is the one that is pinned.
    assert f'"verl=={doctor.SUPPORTED_VERL}"' in PROJECT.read_text()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "entry_points",
            lambda group: [],
            "the entry point prime_ext of verl.plugins is missing; run pip",
        ),
        ("SUPPORTED_VERL", "0.9.9", "pip install verl==0.9.9"),
        ("LEAST_MEMORY_GB", 1e6, "GB of memory are available; close other programs"),
        ("LEAST_SHARED_MEMORY_GB", {"cpu": 1e6}, "--shm-size=10g"),
    ],
)
def test_each_problem_is_one_line_with_a_remedy(monkeypatch, capsys, name, value, said):
    monkeypatch.setattr(doctor, name, value)
    assert said in only_problem(capsys)


def test_plugins_switched_off(monkeypatch):
    for policy, n_problems in (("none", 1), ("other", 1), ("other,prime_ext", 0), ("auto", 0)):
        monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", policy)
        _, problems = doctor.diagnose()
        assert len(problems) == n_problems
        assert all("keeps verl from loading prime_ext; unset it" in line for line in problems)


def test_an_error_that_verl_swallows_is_shown(monkeypatch, capsys, tmp_path):
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('a patched name is gone')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(doctor, "PLUGIN", "broken_plugin")
    problem = only_problem(capsys)
    assert (
        "broken_plugin cannot be imported, which verl hides (RuntimeError: a patched name is gone)"
        in problem
    )


def test_a_machine_without_an_accelerator_and_one_with_gpus(monkeypatch, tmp_path):
    monkeypatch.delenv("VERL_PLATFORM")
    assert "export VERL_PLATFORM=cpu and use --config-name=prime_trainer_cpu" in next(
        iter(doctor._accelerators({}))
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H100")
    monkeypatch.setattr(doctor, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "flash_attn", sys)
    facts = {}
    assert list(doctor._accelerators(facts)) == [] and facts["accelerators"].count("H100") == 8
    monkeypatch.delitem(sys.modules, "flash_attn")
    (tmp_path / "flash_attn.py").write_text("raise ImportError('undefined symbol: _ZN3c104cuda')")
    monkeypatch.syspath_prepend(tmp_path)
    (problem,) = doctor._accelerators(facts)
    assert (
        "flash-attn cannot be imported (undefined symbol: _ZN3c104cuda)" in problem
        and "sdpa" in problem
    )
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    (problem,) = doctor._accelerators(facts)
    assert "on the CPU, and there are 8 GPUs; unset" in problem
