# SPDX-License-Identifier: Apache-2.0
"""The worker pool: every task ends in a value or a failure, whatever happens to its worker."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pool_tasks import (
    double,
    fails,
    forever,
    hungry,
    kill_myself,
    kill_myself_once,
    nap,
    stuck_in_c,
)
from processes import alive, wait_until

from prime_ext.verifiers.verdict import Outcome
from prime_ext.verifiers.worker_pool import Failure, WorkerPool

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(2, time_limit=600.0, memory_limit=1024**3) as shared:
        yield shared


@pytest.mark.parametrize("task", [forever, stuck_in_c])
def test_only_the_task_past_its_time_limit_is_killed(pool, task):
    stuck = pool.submit(task, time_limit=0.5)
    others = [pool.submit(double, x) for x in range(20)]
    assert stuck.result().outcome is Outcome.TIMEOUT
    assert [future.result() for future in others] == [2 * x for x in range(20)]


def test_waiting_in_the_queue_does_not_count(pool):
    futures = [pool.submit(nap, 0.05, time_limit=2.0) for _ in range(100)]
    assert not [future.result() for future in futures if isinstance(future.result(), Failure)]


def test_excess_memory_exceptions_and_unpicklable_values_are_failures(pool):
    assert pool.run(hungry).outcome is Outcome.OUT_OF_MEMORY
    assert pool.run(fails) == Failure(Outcome.ERROR, "KeyError: 'lost'")
    for unpicklable in (lambda: 1, threading.Lock):
        assert pool.run(unpicklable).outcome is Outcome.ERROR
    assert pool.run(double, 4) == 8


def test_a_task_whose_worker_is_killed_is_tried_once_more(pool, tmp_path):
    assert pool.run(kill_myself_once, str(tmp_path / "marker")) == "second try"
    failure = pool.run(kill_myself)
    assert failure.outcome is Outcome.ERROR and "died twice" in failure.detail


@pytest.mark.parametrize("tasks", [60, 0])
def test_workers_killed_from_outside_lose_no_task(tasks):
    with WorkerPool(2, time_limit=30.0) as pool:
        seen = {pool.run(nap, 0.05) for _ in range(8)}
        futures = [pool.submit(nap, 0.05) for _ in range(tasks)]
        time.sleep(0.5)
        for process in seen:
            os.kill(process, signal.SIGKILL)
        assert all(isinstance(future.result(timeout=600), int) for future in futures)
        assert pool.run(double, 3) == 6


def test_workers_that_cannot_start_fail_and_old_ones_are_replaced(
    monkeypatch,
):
    with WorkerPool(1, warm_up="no_such_module:warm_up") as pool:
        assert pool.run(double, 1).outcome is Outcome.ERROR
    monkeypatch.setattr("prime_ext.verifiers.worker_pool._TASKS_PER_WORKER", 5)
    with WorkerPool(1) as pool:
        assert len({pool.run(nap, 0.0) for _ in range(12)}) >= 2


def test_what_is_cancelled_before_its_start_is_not_run(tmp_path):
    with WorkerPool(1, time_limit=60.0) as pool:
        running = pool.submit(nap, 0.5)
        waiting = pool.submit((tmp_path / "ran").touch)
        assert waiting.cancel() and isinstance(running.result(), int)
        assert pool.run(double, 5) == 10 and not os.listdir(tmp_path)


def test_workers_do_not_run_the_main_program(tmp_path):
    # No `if __name__ == "__main__"`: with a plain spawn context each worker would run all of this.
    program = tmp_path / "unguarded.py"
    lines = [
        "from math import sqrt",
        "from prime_ext.verifiers.worker_pool import WorkerPool",
        "print('main')",
    ]
    program.write_text(
        "\n".join([*lines, "with WorkerPool(2) as pool: print(pool.run(sqrt, 9.0))"])
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.stdout == "main\n3.0\n" and done.stderr == ""


def test_closing_fails_what_is_left_and_what_comes_later():
    pool = WorkerPool(1, time_limit=60.0)
    process = pool.run(nap, 0.0)
    running = pool.submit(nap, 50.0)
    time.sleep(0.3)
    threads = threading.active_count()
    pool.close()
    pool.close()
    assert running.result(timeout=600).outcome is Outcome.ERROR
    assert threading.active_count() == threads - 1
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(double, 1)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.parametrize("end", [signal.SIGKILL, None])
def test_busy_workers_die_with_the_parent(end):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests/verifiers"}
    words = [sys.executable, "-c", "import pool_tasks; pool_tasks.keep_busy()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, text=True) as parent:
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert workers
        if end is None:
            parent.stdin.write("\n")
        else:
            parent.send_signal(end)
    assert wait_until(lambda: not any(alive(worker) for worker in workers)), (
        "a worker outlived its parent"
    )


def test_a_forked_child_gets_a_pool_of_its_own(pool):
    assert pool.run(double, 1) == 2
    child = os.fork()
    if child == 0:
        # Nothing of pytest may run here.
        os._exit(0 if pool.run(double, 2) == 4 else 1)
    ended = []
    assert wait_until(lambda: ended.append(os.waitpid(child, os.WNOHANG)) or ended[-1][0]), (
        "the forked child hangs"
    )
    assert os.waitstatus_to_exitcode(ended[-1][1]) == 0


def test_settings_that_make_no_sense_are_refused():
    for name in ("workers", "time_limit", "memory_limit"):
        with pytest.raises(ValueError, match=f"{name}=0"):
            WorkerPool(**{name: 0})
