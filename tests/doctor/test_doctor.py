# SPDX-License-Identifier: Apache-2.0
"""The doctor finds what is wrong with an installation, and says what to do, one line each."""

import importlib.metadata
import json
import os
import subprocess
import sys

import pytest
import torch

from prime_ext import doctor
from prime_ext import verl_compat as compat


@pytest.fixture(autouse=True)
def sound_environment(monkeypatch):
    """This machine, with the plug-in installed, whatever the shell says; memory is not what these tests are about."""
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("VERL_USE_EXTERNAL_MODULES", raising=False)
    monkeypatch.delenv("VERL_USE_EXTERNAL_PLUGINS", raising=False)
    monkeypatch.setattr(doctor, "LEAST_MEMORY_GB", 0.0)
    point = importlib.metadata.EntryPoint("prime_ext", "prime_ext.plugin", "verl.plugins")
    monkeypatch.setattr(doctor, "entry_points", lambda group: [point])


def only_problem(capsys, arguments=()):
    status = doctor.main(list(arguments))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem: ")]
    assert status == 1 and len(lines) == 1, lines
    return lines[0].removeprefix("problem: ")


def test_a_sound_installation(capsys):
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    assert out.endswith("no problems found\n")
    assert all(fact in out for fact in ("TransferQueue", "/dev/shm", "transformers"))


def test_the_command_prints_nothing_but_json_when_asked(tmp_path):
    command = [sys.executable, "-m", "prime_ext.doctor", "--json"]
    environment = os.environ | {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "prime_ext.plugin"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    report = json.loads(done.stdout)
    assert done.returncode == (1 if report["problems"] else 0)
    # A loaded machine may be short of memory; nothing else may be wrong.
    assert all("of memory are available" in problem for problem in report["problems"]), report["problems"]
    modes = ("sync", "colocate_async", "separate_async")
    trainers = [f"{method}_{mode}" for method in ("prime", "pspo") for mode in modes]
    assert report["facts"]["plug-in"]["trainers"] == ", ".join(trainers)
    assert report["facts"]["plug-in"]["device of verl"] == "cpu"
    assert report["facts"]["versions"]["verl"] == compat.SUPPORTED_VERL


@pytest.mark.parametrize(
    ("owner", "name", "value", "said"),
    [
        (doctor, "entry_points", lambda group: [], "the entry point prime_ext of verl.plugins is missing; run pip"),
        (doctor, "TRAINER_MODES", ("prime_sync", "other"), "trainer.v1.trainer_mode=other is not registered"),
        (compat, "SUPPORTED_VERL", "0.9.9", "pip install verl==0.9.9"),
        (doctor, "LEAST_MEMORY_GB", 1e6, "GB of memory are available; close other programs"),
        (doctor, "LEAST_SHARED_MEMORY_GB", 1e6, "--shm-size=1g"),
    ],
)
def test_what_is_wrong_is_one_line_that_says_what_to_do(monkeypatch, capsys, owner, name, value, said):
    monkeypatch.setattr(owner, name, value)
    assert said in only_problem(capsys)


@pytest.mark.parametrize("policy, fine", [("none", False), ("other", False), ("other,prime_ext", True), ("auto", True)])
def test_plugins_switched_off(monkeypatch, policy, fine):
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", policy)
    problems = doctor.diagnose().problems
    assert bool(problems) != fine and all("keeps verl from loading prime_ext; unset it" in line for line in problems)


def test_the_loud_way_needs_no_entry_point(monkeypatch):
    monkeypatch.setattr(doctor, "entry_points", lambda group: [])
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "other,prime_ext.plugin")
    assert doctor.main([]) == 0


def test_an_error_that_verl_swallows_is_shown(monkeypatch, capsys, tmp_path):
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('a patched name is gone')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(doctor, "PLUGIN_MODULE", "broken_plugin")
    problem = only_problem(capsys)
    assert "broken_plugin cannot be imported, which verl hides (RuntimeError: a patched name is gone)" in problem


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("verl.nowhere:x", "", "verl.nowhere.x, needed for scoring, is gone or changed"),
        ("verl.protocol:DataProto.gone", "", "verl.protocol.DataProto.gone, needed for scoring"),
        ("verl.protocol:DataProto.chunk", "no such text", "its source no longer contains"),
    ],
)
def test_a_private_name_of_verl_that_is_gone_or_changed(monkeypatch, capsys, name, text, said):
    monkeypatch.setitem(compat.VERL_NAMES, name, ("scoring", text))
    problem = only_problem(capsys)
    assert said in problem and f"install verl=={compat.SUPPORTED_VERL}" in problem


def test_no_accelerator_and_no_word_about_the_cpu(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "DRIVER_FILE", tmp_path / "none")
    monkeypatch.delenv("VERL_PLATFORM")
    problems = doctor.diagnose().problems
    assert any("export VERL_PLATFORM=cpu and use --config-name=prime_trainer_cpu" in problem for problem in problems)
    no_engine = doctor.find_spec("vllm") is None
    assert any("no rollout engine is installed" in problem for problem in problems) == no_engine


# ---- a machine with GPUs ----


DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Jul 1 2026\nGCC version:  gcc version 12.2.0\n"


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Eight GPUs that PyTorch can use, on a machine that lacks nothing."""
    monkeypatch.delenv("VERL_PLATFORM")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H100")
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(doctor, "LEAST_SHARED_MEMORY_OF_GPUS_GB", 0.0)
    monkeypatch.setattr(doctor, "DRIVER_FILE", tmp_path / "version")
    (tmp_path / "version").write_text(DRIVER.format("580.65.06"))
    for package in ("flash_attn", "vllm"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
        monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def machine_problems():
    """What there is to say about the machine; verl itself is not asked, which this machine would drive as a CPU."""
    report = doctor.Report()
    return [line for look in (doctor._machine, doctor._accelerators, doctor._rollout_engines) for line in look(report)]


def test_a_machine_with_gpus_that_lacks_something(gpus, monkeypatch):
    assert machine_problems() == []
    for owner, name, value, said in (
        (os, "cpu_count", lambda: 32, "set ray_kwargs.ray_init.num_cpus=33"),
        (doctor, "LEAST_SHARED_MEMORY_OF_GPUS_GB", 1e6, "start the container with --shm-size=10g"),
        (os, "environ", {**os.environ, "VERL_PLATFORM": "cpu"}, "on the CPU, and there are 8 GPUs; unset"),
    ):
        with monkeypatch.context() as change:
            change.setattr(owner, name, value)
            (problem,) = machine_problems()
            assert said in problem


def test_flash_attention_is_missing_or_built_for_something_else(gpus, monkeypatch):
    (gpus / "flash_attn" / "__init__.py").write_text("raise ImportError('undefined symbol: _ZN3c104cuda')")
    (problem,) = machine_problems()
    assert "flash-attn cannot be imported (undefined symbol: _ZN3c104cuda)" in problem and "sdpa" in problem
    find = doctor.find_spec
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "flash_attn" else find(name))
    (problem,) = machine_problems()
    assert problem.startswith("flash-attn is not installed")
    assert "docs/how_to/install.md" in problem and "sdpa" in problem


@pytest.mark.parametrize(
    ("cuda", "driver", "said"),
    [
        ("13.0", "550.54.15", "550.54.15, but it is too old for CUDA 13.0 of this PyTorch; install driver R580 or"),
        ("12.8", "580.65.06", "but PyTorch finds no GPU behind it; give the container its GPUs"),
        (None, "580.65.06", "but this PyTorch is built for the CPU only"),
    ],
)
def test_a_driver_that_pytorch_cannot_use(gpus, monkeypatch, cuda, driver, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    doctor.DRIVER_FILE.write_text(DRIVER.format(driver))
    (problem,) = machine_problems()
    assert said in problem


def test_the_number_of_storage_units_is_that_of_verl():
    from prime_ext.config.compose import compose_config

    config = compose_config("prime_trainer", [])
    assert config.transfer_queue.backend.SimpleStorage.num_data_storage_units == doctor.STORAGE_UNITS
