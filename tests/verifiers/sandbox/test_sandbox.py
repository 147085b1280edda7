# SPDX-License-Identifier: Apache-2.0
"""Limits of a run, what it leaves, and what ordinary programs can rely on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import get_processes, get_server, wait_until

from prime_ext.verifiers.sandbox import client, harness
from prime_ext.verifiers.sandbox.client import (
    Ending,
    Limits,
    Sandbox,
    SandboxUnavailable,
    find_protection,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(Limits(seconds=60.0, memory_bytes=512 << 20)) as running:
        yield running


LARGE_STACKS = """
import sys, threading
sys.setrecursionlimit(10**6)
threading.stack_size(1 << 27)
def f(n): return n and 1 + f(n - 1)
t = threading.Thread(target=lambda: print(f(20000)))
t.start()
"""


@pytest.mark.parametrize(
    ("program", "stdout"),
    [
        ("import sys; print(sys.stdin.read().strip().replace('ü', 'Ü'))", "42 Ü"),
        ("print(int(open(0).read()[:2]))", "42"),
        ("import os; print(int(os.read(0, 2).decode()))", "42"),
        (LARGE_STACKS, "20000"),
        ("import atexit; atexit.register(print, 'late'); print('early')", "early\nlate"),
        ("open('f', 'w').write('x'); print(open('f').read())", "x"),
        ("import sqlite3, email, asyncio; print(asyncio.run(asyncio.sleep(0, 3)))", "3"),
        ("from dataclasses import dataclass\n@dataclass\nclass P: x: int\nprint(P(1), __name__)",
         "P(x=1) __main__"),
        (f"import os, sys; print(dict(os.environ), sys.argv, {str(ROOT)!r} in sys.path)",
         "{} ['program.py'] False"),
    ],
)  # fmt: skip
def test_what_programs_rely_on(sandbox, monkeypatch, program, stdout):
    monkeypatch.setenv("PRIME_EXT_SECRET", "secret")
    execution = sandbox.run(program, "42 ü\n")
    assert (
        execution.stdout.decode() == stdout + "\n"
        and execution.ending is Ending.FINISHED
        and execution.seconds > 0
    )


def test_exit_codes(sandbox):
    for code, expected in (("0", 0), ("3", 3), ("None", 0), ("'sorry'", 1)):
        execution = sandbox.run(f"import sys; sys.exit({code})")
        assert (execution.exit_code, execution.ending is Ending.FINISHED) == (
            expected,
            expected == 0,
        )


def test_numbers_differ_from_run_to_run_but_sets_do_not(sandbox):
    program = "import random; print(random.random()); print({'a', 'b', 'c', 'd'})"
    first, second = (sandbox.run(program).stdout.split(b"\n") for _ in range(2))
    assert first[0] != second[0] and first[1] == second[1]


@pytest.mark.parametrize(
    ("program", "limits", "ending"),
    [
        ("while True: pass", {"seconds": 0.2}, Ending.TIMEOUT),
        ("x = bytearray(1 << 29)", {"memory_bytes": 512 << 20}, Ending.OUT_OF_MEMORY),
        ("x = bytearray(1 << 27)", {"memory_bytes": 512 << 20}, Ending.FINISHED),
        ("print('x' * 100)", {"output_bytes": 50}, Ending.OUTPUT_LIMIT),
        ("import sys; sys.stderr.write('x' * 100000 + 'end')", {}, Ending.FINISHED),
    ],
)
def test_each_limit_has_its_ending(sandbox, program, limits, ending):
    execution = sandbox.run(program, limits=Limits(**{"seconds": 60.0, **limits}))
    assert execution.ending is ending
    assert len(execution.stdout) <= 50 and len(execution.stderr) <= 4096
    assert execution.stderr.endswith("end") == ("end" in program)


def test_limits_that_make_no_sense():
    for name, value in (
        ("seconds", 0),
        ("seconds", float("nan")),
        ("memory_bytes", 1),
        ("output_bytes", True),
    ):
        with pytest.raises(ValueError, match=name):
            Limits(**{name: value})


def test_runs_at_the_same_time_leave_no_descriptors(sandbox):
    def run_many():
        futures = [sandbox.submit(f"print({number})") for number in range(50)]
        assert [future.result().stdout for future in futures] == [
            b"%d\n" % number for number in range(50)
        ]
        return len(os.listdir("/proc/self/fd"))

    assert run_many() == run_many()
    assert [os.listdir(server.base) for server in sandbox._worker_threads.workers] == [[]] * len(
        sandbox._worker_threads.workers
    )


def test_a_killed_server_ends_its_run_and_loses_no_task():
    with Sandbox(workers=1) as sandbox:
        server = get_server(sandbox)
        future = sandbox.submit("import time; time.sleep(1); print(7)")
        assert wait_until(lambda: len(get_processes(server.base)) == 2)
        server.process.kill()
        assert wait_until(lambda: not get_processes(server.base))
        assert (
            future.result(timeout=6000).stdout == b"7\n"
            and get_server(sandbox).process.pid != server.process.pid
        )


def test_a_server_that_hangs_is_replaced(monkeypatch):
    monkeypatch.setattr("prime_ext.verifiers.sandbox.client._GRACE_SECONDS", 0.5)
    with Sandbox(Limits(seconds=5), workers=1) as sandbox:
        os.kill(get_server(sandbox).process.pid, signal.SIGSTOP)
        assert sandbox.run("print(1)").stdout == b"1\n"


@pytest.mark.parametrize("how", [signal.SIGKILL, None])
def test_nothing_survives_the_parent(how):
    code = (
        "import sys, time\nfrom prime_ext.verifiers.sandbox.client import *\n"
        "s = Sandbox(Limits(seconds=60), 1)\n"
        "for _ in range(2): s.submit('import time\\nwhile True: pass')\n"
        "time.sleep(0.3); print(*[w.base for w in s._worker_threads.workers], flush=True)\n"
        + ("time.sleep(60)" if how else "")
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        base = parent.stdout.readline().strip()
        if how:
            assert wait_until(lambda: len(get_processes(base)) >= 2)
            parent.send_signal(how)
        parent.wait(timeout=6000)
    assert wait_until(lambda: not get_processes(base) and not os.path.exists(base))


def test_a_server_that_cannot_be_started_again_leaves_nobody_waiting(monkeypatch):
    with Sandbox(Limits(seconds=900), workers=1) as sandbox:
        futures = [sandbox.submit("import time; time.sleep(600)") for _ in range(3)]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/nowhere/python")
            os.kill(get_server(sandbox).process.pid, signal.SIGKILL)
            executions = [future.result(timeout=6000) for future in futures]
        assert all(execution.ending is Ending.SANDBOX_FAILURE for execution in executions)
        assert "/nowhere/python" in executions[0].stderr
        assert sandbox.run("print(1)").stdout == b"1\n", "a later request finds a new server"


WITHOUT = {
    "Landlock": "confinement.landlock_abi = lambda: 0",
    "system call filter": "confinement.Filter = lambda program: None",
    "resource limits": "confinement._lower = lambda kind, value: None",
}


@pytest.mark.parametrize("protection", WITHOUT)
def test_without_a_protection_it_refuses_unless_told_otherwise_by_name(monkeypatch, protection):
    assert find_protection().describe().startswith("sufficient: Landlock ABI ")
    patches = f"from prime_ext.verifiers.sandbox import confinement\n{WITHOUT[protection]}\n"
    monkeypatch.setattr(
        client, "_BOOT", client._BOOT.replace("main(settings)", f"{patches}main(settings)")
    )
    with pytest.raises(
        SandboxUnavailable, match=f"not run here: no {protection}.*unsafe_no_sandbox"
    ):
        Sandbox()
    with Sandbox(workers=1, unsafe_no_sandbox=True) as unsafe:
        assert unsafe.run("print(1)").stdout == b"1\n"


def test_a_server_that_does_not_start_says_why(monkeypatch):
    monkeypatch.setattr(client, "_BOOT", "import no_such_module")
    with pytest.raises(SandboxUnavailable, match="no_such_module"):
        Sandbox()
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(SandboxUnavailable, match="cannot be started"):
        Sandbox()


def test_children_that_cannot_start_are_sandbox_failures():
    empty = client._open_file(b"")
    for content, expected in ((harness.STARTED, Ending.FAILED), (b"", Ending.SANDBOX_FAILURE)):
        files = [empty, empty, empty, client._open_file(content), empty]
        assert (
            client._execution({"verdict": "", "code": 1, "seconds": 0.1}, files, Limits()).ending
            is expected
        )
