# SPDX-License-Identifier: Apache-2.0
"""The doctor finds what is wrong with an installation, and prints what to do, one line each."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import fake_gpus
import pytest
import torch
from forked_workers import python
from packaging.requirements import Requirement

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
    trainers = [f"prime_{mode}" for mode in modes]
    assert (
        f"{'trainers':<26}{', '.join(trainers)}" in lines and f"{'device of verl':<26}cpu" in lines
    )
    # The version that it asks for is the one that is pinned.
    assert f'"verl=={doctor.SUPPORTED_VERL}"' in PROJECT.read_text()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("entry_points", lambda group: [],
         "the entry point prime_ext of verl.plugins is missing; run pip"),
        ("PINS", {"verl": "==0.9.9"}, "pip install 'verl==0.9.9'"),
        ("PINS", {"no-such-package": ">=1"}, "no-such-package none is installed, prime_ext needs"),
        ("LEAST_MEMORY_GB", 1e6, "GB of memory are available; close other programs"),
        ("LEAST_SHARED_MEMORY_GB", {"cpu": 1e6}, "--shm-size=10g"),
    ],
)  # fmt: skip
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


def test_the_pins_are_those_of_verl_and_of_this_package():
    ours = map(Requirement, importlib.metadata.requires("prime_ext"))
    of_verl = map(Requirement, importlib.metadata.requires("verl"))
    pinned = {(one.name, str(one.specifier)) for one in (*ours, *of_verl)}
    for name, pin in (*doctor.PINS.items(), *doctor.GPU_PINS.items()):
        assert (name, str(Requirement(f"{name}{pin}").specifier)) in pinned, name


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Return a function that puts GPUs into this machine, with the versions that verl pins."""
    stack = {"torch": "2.11.0+cu130", "vllm": "0.24.0", "flash-attn": "2.8.3+cu13torch2.11"}

    def install(name="NVIDIA H100", capability=(9, 0), **versions):
        known = stack | {"transformers": "5.9.0", "verl": "0.9.1", "ray": "2.60.0"}
        known |= {"TransferQueue": "0.1.11", "tensordict": "0.10.0", **versions}
        monkeypatch.delenv("VERL_PLATFORM")
        monkeypatch.setattr(doctor, "version", lambda name: known.get(name, "1"))
        monkeypatch.setattr(doctor, "find_spec", lambda name: name)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setitem(sys.modules, "flash_attn", sys)
        fake_gpus.install(monkeypatch, tmp_path, name, capability)

    return install


def test_gpus_with_the_stack_that_verl_pins_have_no_problem(gpus):
    gpus()
    facts = {}
    assert list(doctor._versions(facts)) == list(doctor._accelerators(facts)) == []
    assert facts["accelerators"].count("H100") == 8


@pytest.mark.parametrize(
    ("package", "installed"),
    [
        ("torch", "2.13.0+cu130"),
        ("vllm", "0.29.0"),
        ("transformers", "5.12.1"),
        ("flash-attn", "2.7.4"),
        ("ray", "2.40.0"),
        ("TransferQueue", "0.1.9"),
        ("tensordict", "0.11.0"),
    ],
)
def test_versions_other_than_the_pinned_ones_are_problems(gpus, package, installed):
    gpus(**{package: installed})
    (problem,) = doctor._versions({})
    assert problem.startswith(
        f"{package} {installed} is installed, prime_ext needs {package}="
    ) or (package == "ray" and "needs ray>=" in problem)


def test_old_gpus_and_missing_headers_are_problems(gpus, tmp_path):
    gpus("Tesla T4", (7, 5))
    (tmp_path / "Python.h").unlink()
    old, header = doctor._accelerators({})
    assert "Tesla T4 has compute capability 7.5" in old and "Python.h cannot be found" in header


@pytest.mark.parametrize(
    ("release", "said"),
    [(None, "is missing"), ("13.2", "is 13.2"), ("13.0", "")],
)
def test_blackwell_needs_the_toolkit_or_another_attention(
    gpus, monkeypatch, tmp_path, release, said
):
    gpus("NVIDIA B200", (10, 0))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    if release:
        (tmp_path / "bin").mkdir()
        fake_gpus.write_program(tmp_path / "bin" / "nvcc", f"tools, release {release}, V{release}")
    problems = list(doctor._accelerators({}))
    assert len(problems) == bool(said)
    assert all(said in line and "attention_backend=FLASH_ATTN" in line for line in problems)


def test_a_missing_accelerator_is_explained_by_its_driver(monkeypatch, tmp_path):
    monkeypatch.delenv("VERL_PLATFORM")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.version, "cuda", None)
    ask = doctor._explain_missing_accelerator
    assert "export VERL_PLATFORM=cpu and use --config-name=prime_trainer_cpu" in ask()
    fake_gpus.write_program(tmp_path / "nvidia-smi", "550.54.15\n550.54.15")
    assert "nvidia-smi lists 2 GPUs" in ask() and "is a build without CUDA; pip install" in ask()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "driver 550.54.15 is too old" in ask() and "install R580 or newer" in ask()
    fake_gpus.write_program(tmp_path / "nvidia-smi", "580.159.04")
    assert "PyTorch finds no accelerator; compare nvidia-smi" in ask()
    assert ask() in doctor._accelerators({})


def test_a_host_name_of_the_loopback_is_shown(monkeypatch):
    for address, said in (("127.0.1.1", "which other nodes cannot reach"), ("10.0.0.7", "")):
        monkeypatch.setattr("socket.gethostbyname", lambda name, address=address: address)
        facts = {}
        assert list(doctor._machine(facts)) == []
        assert f"resolves to {address}" in facts["host name"] and said in facts["host name"]


def test_caches_on_a_network_file_system_are_named(monkeypatch, tmp_path):
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4")]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: mounts)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "me")
    for name in doctor.CACHES:
        monkeypatch.delenv(name, raising=False)

    def describe():
        facts = {}
        assert list(doctor._machine(facts)) == []
        return facts.get("caches of kernels", "")

    assert describe() == ""
    mounts.append(SimpleNamespace(mountpoint=str(tmp_path), fstype="nfs4"))
    assert f"in {tmp_path}/me on nfs4" in describe() and "set TRITON_CACHE_DIR, VLLM" in describe()
    for name in doctor.CACHES:
        monkeypatch.setenv(name, "/local")
    assert describe() == ""


def test_flash_attention_that_cannot_be_imported_and_cpu_mode_on_gpus(gpus, monkeypatch, tmp_path):
    gpus()
    monkeypatch.delitem(sys.modules, "flash_attn")
    (tmp_path / "flash_attn.py").write_text("raise ImportError('undefined symbol: _ZN3c104cuda')")
    monkeypatch.syspath_prepend(tmp_path)
    (problem,) = doctor._accelerators({})
    assert (
        "flash-attn cannot be imported (undefined symbol: _ZN3c104cuda)" in problem
        and "sdpa" in problem
    )
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    (problem,) = doctor._accelerators({})
    assert "on the CPU, and there are 8 GPUs; unset" in problem
