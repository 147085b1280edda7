# SPDX-License-Identifier: Apache-2.0
"""Steps on a device: what starts, what stops, what the results say; all of it on the CPU."""

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import device_probes
import device_run
import flash_attention
import pytest
import torch
from device_run import Place, Step, build_first_run, run_steps
from forked_workers import python, with_forks

ROOT = Path(__file__).resolve().parents[2]
RUNS = ("shrunk", "resume", "gsm8k", "distilled")


@pytest.fixture
def place(tmp_path):
    return Place("cpu", sys.executable, tmp_path / "results", tmp_path / "work")


def say(name, program, **options):
    return Step(name, [sys.executable, "-c", program], options.pop("limit", 60), **options)


def read_results(place):
    results = json.loads((place.results / "cpu_test.json").read_text())
    return {step["name"]: step for step in results["steps"]}, results["counts"]


def run_script(*words, **knobs):
    environment = {**os.environ, "PYTHON": sys.executable, **knobs}
    command = ["bash", "tests/gpu/first_run.sh", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_a_dry_run_prints_steps_and_limits_and_runs_nothing(tmp_path):
    folders = {"RESULTS": str(tmp_path / "results"), "WORK": str(tmp_path)}
    done = run_script("--dry-run", DEVICE="cuda", **folders)
    lines = [line.split() for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert [line[0] for line in lines] == (
        "doctor toolchain triton compile flash_attn inputs evaluate shrunk resume gsm8k distilled"
        " logs all"
    ).split()
    limits = [int(line[1]) for line in lines]
    assert sum(limits[:-1]) == limits[-1] and limits[-1] + device_run.GRACE <= 15 * 60
    assert "SHRINK_ROLLOUT=vllm" in done.stdout and "--backend vllm" in done.stdout
    assert done.returncode == 0 and list(tmp_path.iterdir()) == []


def test_help_needs_no_python_and_names_every_step(place):
    done = run_script("--help", PYTHON="/nowhere")
    assert done.returncode == 0 and "first_run.sh --from" in done.stdout
    assert all(step.name in done.stdout for step in build_first_run(place))


@pytest.mark.parametrize(
    ("words", "knobs", "said"),
    [
        (["--from", "nothing"], {}, "no step nothing; the steps are doctor, toolchain"),
        (["nothing"], {}, "no step nothing"),
        ([], {"DEVICE": "tpu"}, "DEVICE=tpu must be cuda or cpu"),
        ([], {"LIMIT": "soon"}, "LIMIT=soon must be a number of seconds"),
    ],
)
def test_wrong_words_end_in_one_line(words, knobs, said):
    done = run_script(*words, "--dry-run", **{"DEVICE": "cpu", **knobs})
    assert done.returncode == 2 and said in done.stderr.splitlines()[-1]


def test_the_first_failure_stops_with_log_and_remedy(place, capsys):
    steps = [
        say("one", "print('first')"),
        say("two", "print('why'); raise SystemExit(3)", remedy="mend it"),
        say("three", "open('never', 'w')"),
        say("logs", "print('copied')", always=True),
    ]
    assert run_steps("test", steps, steps, place, keep_going=False) == 1
    entries, counts = read_results(place)
    assert {name: entry["status"] for name, entry in entries.items()} == {
        "one": "passed",
        "two": "failed",
        "logs": "passed",
    }
    assert counts == {"passed": 2, "failed": 1, "not run": 1}
    assert entries["two"]["last_lines"] == ["why"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"test: step two failed: it ended with status 3; its log is {place.results / 'two.log'};"
        " mend it, then: bash tests/gpu/test.sh --from two"
    )


def test_independent_parts_go_on_after_a_failure(place):
    steps = [say("one", "raise SystemExit(1)"), say("two", "")]
    assert run_steps("test", steps, steps, place, keep_going=True) == 1
    assert read_results(place)[1] == {"failed": 1, "passed": 1, "not run": 0}


def test_a_limit_ends_a_step_with_all_its_processes(place, tmp_path):
    there = tmp_path / "pid"
    program = (
        "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import"
        f" time; time.sleep(600)'], start_new_session=True); open({str(there)!r},"
        " 'w').write(str(child.pid)); time.sleep(600)"
    )
    step = say("long", program, limit=3)
    assert run_steps("test", [step], [step], place, keep_going=False) == 1
    entries, _ = read_results(place)
    assert entries["long"]["reason"] == "it reached its limit of 3 s"
    status = Path("/proc", there.read_text(), "stat")
    deadline = time.monotonic() + 20
    while status.exists() and status.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_missing_package_skips_and_warnings_go_on(place):
    steps = [
        say("warns", "raise SystemExit(1)", statuses={0: "passed", 1: "warned"}),
        say("lacks", "", needs=["no_such_package"]),
        say("on_a_gpu", "", needs_device=True),
        say("last", ""),
    ]
    assert run_steps("test", steps, steps, place, keep_going=False) == 0
    entries, counts = read_results(place)
    assert counts == {"warned": 1, "skipped": 2, "passed": 1, "not run": 0}
    assert entries["lacks"]["reason"].startswith("needs no_such_package: pip install")
    assert entries["on_a_gpu"]["reason"] == "needs a CUDA device"


def test_continuing_keeps_earlier_results(place, tmp_path):
    there = tmp_path / "there"
    steps = [
        say("one", f"open({str(there)!r}, 'x')"),
        say("two", f"raise SystemExit(not __import__('os').path.exists('{tmp_path}/mended'))"),
    ]
    assert run_steps("test", steps, steps, place, keep_going=False) == 1
    (tmp_path / "mended").touch()
    chosen = device_run.choose_steps(steps, [], "two")
    assert run_steps("test", steps, chosen, place, keep_going=False) == 0
    entries, counts = read_results(place)
    assert list(entries) == ["one", "two"] and counts == {"passed": 2, "not run": 0}


def test_a_run_that_logs_no_new_step_fails(place, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2, "data": {}}\n')
    os.utime(path, (1, 1))
    line = '{"step": 3, "data": {}}\n'
    steps = [
        say("empty", "", metrics=(path, 2)),
        say("short", f"open({str(path)!r}, 'a').write({line!r})", metrics=(path, 4)),
        say("right", f"open({str(path)!r}, 'a').write({line!r})", metrics=(path, 3)),
    ]
    run_steps("test", steps, steps, place, keep_going=True)
    entries, _ = read_results(place)
    assert [entry["status"] for entry in entries.values()] == ["failed", "failed", "passed"]
    assert "no step" in entries["empty"]["reason"] and "is 3, not 4" in entries["short"]["reason"]


def test_the_toolchain_names_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="no C compiler: apt-get install gcc"):
        device_probes.check_toolchain()
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(SystemExit, match=r"no Python.h in .*: apt-get install python3.*-dev"):
        device_probes.check_toolchain()


@pytest.mark.parametrize("causal", [True, False])
def test_packed_attention_is_compared_with_that_of_torch(monkeypatch, causal):
    def flash_attn_varlen_func(*words, **options):
        return flash_attention.flash_attn_varlen_func(*words, **{**options, "causal": causal})

    package = ModuleType("flash_attn")
    package.flash_attn_varlen_func = flash_attn_varlen_func
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setattr(device_probes, "DEVICE", "cpu")
    with nullcontext() if causal else pytest.raises(AssertionError, match="not close"):
        device_probes.check_flash_attn()


def test_a_disabled_compiler_is_found_out(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(device_probes, "DEVICE", "cpu")
    with pytest.raises(SystemExit, match="compiled nothing"):
        device_probes.check_compile()


@pytest.mark.skipif(device_run.find_spec("triton") is None, reason="needs Triton")
def test_the_kernel_adds():
    environment = {**os.environ, "DEVICE": "cpu", "TRITON_INTERPRET": "1"}
    command = [sys.executable, "tests/gpu/device_probes.py", "triton"]
    assert subprocess.run(command, cwd=ROOT, env=environment).returncode == 0


@pytest.mark.slow
def test_the_first_run_on_the_cpu(tmp_path):
    knobs = {"DEVICE": "cpu", "PYTHON": python(), "LIMIT": "1800"}
    knobs |= {"RESULTS": str(tmp_path / "results"), "WORK": str(tmp_path)}
    done = run_script(**with_forks(os.environ | knobs))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    results = json.loads((tmp_path / "results" / "cpu_first_run.json").read_text())
    statuses = {step["name"]: step["status"] for step in results["steps"]}
    assert statuses.pop("doctor") in ("passed", "warned")
    assert statuses.pop("triton") == statuses.pop("flash_attn") == "skipped"
    assert set(statuses.values()) == {"passed"} and {*RUNS, "evaluate"} <= statuses.keys()
    for name in ("gsm8k", "distilled"):
        assert (tmp_path / "results" / "logs" / name / "metrics.jsonl").exists()
