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
"""The doctor finds what is wrong with an installation, and says what to do, one line each."""

import importlib.metadata
import json
import os
import subprocess
import sys

import pytest

from prime_ext import compat, doctor


@pytest.fixture(autouse=True)
def sound_environment(monkeypatch):
    """This machine, with the plug-in installed, whatever the shell says; memory is not what these tests are about."""
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
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
    for fact in ("python", "verl", "0.9.1", "TransferQueue", "VERL_PLATFORM", "prime_sync", "transformers", "/dev/shm"):
        assert fact in out


def test_the_command_prints_nothing_but_json_when_asked(tmp_path):
    command = [sys.executable, "-m", "prime_ext.doctor", "--json"]
    environment = os.environ | {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "prime_ext.plugin"}
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


def test_a_missing_entry_point(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "entry_points", lambda group: [])
    problem = only_problem(capsys)
    assert "the entry point prime_ext of verl.plugins is missing; run pip install ." in problem


def test_the_loud_way_needs_no_entry_point(monkeypatch):
    monkeypatch.setattr(doctor, "entry_points", lambda group: [])
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "other,prime_ext.plugin")
    assert doctor.main([]) == 0


@pytest.mark.parametrize("policy, fine", [("none", False), ("other", False), ("other,prime_ext", True), ("auto", True)])
def test_plugins_switched_off(monkeypatch, policy, fine):
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", policy)
    problems = doctor.diagnose().problems
    assert bool(problems) != fine and all("keeps verl from loading prime_ext; unset it" in line for line in problems)


def test_an_error_that_verl_swallows_is_shown(monkeypatch, capsys, tmp_path):
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('a patched name is gone')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(doctor, "PLUGIN_MODULE", "broken_plugin")
    problem = only_problem(capsys)
    assert "broken_plugin cannot be imported, which verl hides (RuntimeError: a patched name is gone)" in problem


def test_a_trainer_that_is_not_registered(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "TRAINER_MODES", ("prime_sync", "prime_other"))
    assert only_problem(capsys).startswith("trainer.v1.trainer_mode=prime_other is not registered with verl")


@pytest.mark.parametrize(
    "name, said",
    [
        (compat.VerlName("verl.nowhere", "x", "scoring"), "verl.nowhere.x, needed for scoring, is gone or changed"),
        (compat.VerlName("verl.protocol", "DataProto.gone", "tests"), "verl.protocol.DataProto.gone, needed for tests"),
        (compat.VerlName("verl.protocol", "DataProto.chunk", "tests", "no such text"), "its source no longer contains"),
    ],
)
def test_a_private_name_of_verl_that_is_gone_or_changed(monkeypatch, capsys, name, said):
    monkeypatch.setattr(compat, "VERL_NAMES", (*compat.VERL_NAMES, name))
    problem = only_problem(capsys)
    assert said in problem and f"install verl=={compat.SUPPORTED_VERL}" in problem


def test_another_version_of_verl(monkeypatch, capsys):
    monkeypatch.setattr(compat, "SUPPORTED_VERL", "0.9.9")
    problem = only_problem(capsys)
    assert problem.startswith("verl 0.9.1 is installed") and problem.endswith("pip install verl==0.9.9")


def test_every_private_name_that_is_relied_on_exists():
    assert compat.check_verl() == []


def test_no_accelerator_and_no_word_about_the_cpu(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("VERL_PLATFORM")
    problems = doctor.diagnose().problems
    assert any("export VERL_PLATFORM=cpu and use --config-name=prime_trainer_cpu" in problem for problem in problems)
    assert any("no rollout engine is installed" in problem for problem in problems) == (
        doctor.importlib.util.find_spec("vllm") is None
    )


def test_too_little_memory(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "LEAST_MEMORY_GB", 1e6)
    assert "GB of memory are available; close other programs" in only_problem(capsys)


def test_too_little_shared_memory(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "LEAST_SHARED_MEMORY_GB", 1e6)
    assert "--shm-size=1g" in only_problem(capsys)


def test_every_problem_is_one_line(monkeypatch):
    monkeypatch.setattr(doctor, "entry_points", lambda group: [])
    monkeypatch.setattr(doctor, "LEAST_MEMORY_GB", 1e6)
    monkeypatch.setattr(compat, "SUPPORTED_VERL", "0.0")
    report = doctor.diagnose()
    assert len(report.problems) == 3 and all("\n" not in problem for problem in report.problems)
    assert doctor.render(report).endswith("3 problem(s) found")
