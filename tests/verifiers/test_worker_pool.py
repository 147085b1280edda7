# SPDX-License-Identifier: Apache-2.0
"""What the worker pool promises: every task ends in a value or a failure, whatever happens to its worker."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from pool_tasks import double, fails, forever, hungry, kill_myself, kill_myself_once, nap, stuck_in_c

from prime_ext.verifiers import worker_pool
from prime_ext.verifiers.verdict import Outcome
from prime_ext.verifiers.worker_pool import Failure, WorkerPool, default_pool

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(2, time_limit=600.0, memory_limit=1024**3) as shared:
        yield shared


def test_values_come_back_in_their_own_futures(pool):
    futures = [pool.submit(double, x) for x in range(200)]
    assert [future.result() for future in futures] == [2 * x for x in range(200)]


@pytest.mark.parametrize("task", [forever, stuck_in_c])
def test_a_task_past_its_time_limit_is_killed_and_only_that_one(pool, task):
    stuck = pool.submit(task, time_limit=0.5)
    others = [pool.submit(double, x) for x in range(20)]
    assert stuck.result().outcome is Outcome.TIMEOUT
    assert [future.result() for future in others] == [2 * x for x in range(20)]


def test_waiting_in_the_queue_does_not_count(pool):
    futures = [pool.submit(nap, 0.05, time_limit=2.0) for _ in range(100)]
    assert not [future.result() for future in futures if isinstance(future.result(), Failure)]


def test_memory_beyond_the_limit_is_a_failure_of_that_task(pool):
    failure = pool.run(hungry)
    assert failure.outcome is Outcome.OUT_OF_MEMORY
    assert pool.run(double, 4) == 8


def test_an_exception_is_a_failure_that_names_it(pool):
    failure = pool.run(fails)
    assert failure == Failure(Outcome.ERROR, "KeyError: 'lost'")


def test_something_that_does_not_pickle_is_a_failure(pool):
    assert pool.run(lambda: 1).outcome is Outcome.ERROR
    assert pool.run(threading.Lock).outcome is Outcome.ERROR


def test_a_task_whose_worker_is_killed_is_tried_once_more(pool, tmp_path):
    assert pool.run(kill_myself_once, str(tmp_path / "marker")) == "second try"
    failure = pool.run(kill_myself)
    assert failure.outcome is Outcome.ERROR and "died twice" in failure.detail


def test_workers_killed_from_outside_in_mid_batch_lose_no_task():
    with WorkerPool(2, time_limit=30.0) as pool:
        seen = {pool.run(nap, 0.0) for _ in range(8)}
        futures = [pool.submit(nap, 0.05) for _ in range(60)]
        time.sleep(0.5)
        for process in seen:
            os.kill(process, signal.SIGKILL)
        results = [future.result(timeout=600) for future in futures]
        assert all(isinstance(result, int) for result in results)


def test_idle_workers_killed_from_outside_are_replaced():
    with WorkerPool(2, time_limit=30.0) as pool:
        processes = {pool.run(nap, 0.05) for _ in range(8)}
        time.sleep(0.3)
        for process in processes:
            os.kill(process, signal.SIGKILL)
        time.sleep(1.0)
        assert pool.run(double, 3) == 6


def test_a_pool_in_which_nothing_moves_is_replaced(monkeypatch):
    # Stopped workers stand for a lock that a killed worker took with it.
    monkeypatch.setattr(worker_pool, "_START_LIMIT", 10.0)
    with WorkerPool(1, time_limit=1.0) as pool:
        process = pool.run(nap, 0.0)
        os.kill(process, signal.SIGSTOP)
        assert pool.run(double, 3) == 6


def test_workers_that_cannot_start_are_a_failure_not_a_hang():
    with WorkerPool(1, preload=("no_such_module",)) as pool:
        assert pool.run(double, 1).outcome is Outcome.ERROR


def test_workers_are_replaced_after_so_many_tasks():
    with WorkerPool(1, tasks_per_worker=5) as pool:
        assert len({pool.run(nap, 0.0) for _ in range(12)}) >= 2


def test_a_thousand_waiting_tasks_need_no_more_threads(pool):
    async def main():
        pool.run(double, 0)
        before = threading.active_count()
        tasks = [asyncio.wrap_future(pool.submit(double, x)) for x in range(1000)]
        most, ticks = 0, 0
        while not all(task.done() for task in tasks):
            most = max(most, threading.active_count())
            ticks += 1
            await asyncio.sleep(0.001)
        assert most <= before and ticks > 3
        return [task.result() for task in tasks]

    assert asyncio.run(main()) == [2 * x for x in range(1000)]


def test_a_cancelled_waiter_harms_nobody(pool):
    async def main():
        waiter = asyncio.wrap_future(pool.submit(nap, 0.3))
        await asyncio.sleep(0.05)
        waiter.cancel()
        return await asyncio.wrap_future(pool.submit(double, 5))

    assert asyncio.run(main()) == 10
    assert pool.run(double, 6) == 12


def test_sixty_four_threads_at_once(pool):
    results = {}

    def batch(number):
        results[number] = [future.result() for future in [pool.submit(double, x) for x in range(10)]]

    threads = [threading.Thread(target=batch, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [2 * x for x in range(10)] for number in range(64)}


def test_workers_survive_the_end_of_the_thread_that_started_the_pool():
    with WorkerPool(1, time_limit=30.0) as pool:
        found = []
        starter = threading.Thread(target=lambda: found.append(pool.run(nap, 0.0)))
        starter.start()
        starter.join()
        assert pool.run(nap, 0.2) == found[0]


def test_workers_do_not_run_the_main_program(tmp_path):
    # No `if __name__ == "__main__"`: with a plain spawn context each worker would run all of this.
    program = tmp_path / "unguarded.py"
    program.write_text(
        "from math import sqrt\n"
        "from prime_ext.verifiers.worker_pool import WorkerPool\n"
        "print('main')\n"
        "with WorkerPool(2) as pool:\n"
        "    print(pool.run(sqrt, 9.0))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=600)
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
    assert threading.active_count() == threads - 4
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(double, 1)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None])
def test_busy_workers_die_with_the_parent(end):
    program = textwrap.dedent(
        """
        import sys, time
        sys.path.insert(0, "tests/verifiers")
        import test_worker_pool as here
        from prime_ext.verifiers.worker_pool import WorkerPool
        pool = WorkerPool(2, time_limit=60.0)
        print(*{pool.run(here.nap, 0.05) for _ in range(8)}, flush=True)
        busy = [pool.submit(here.forever) for _ in range(2)]
        time.sleep(0.5)
        print("busy", flush=True)
        sys.stdin.readline()
        """
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    processes = [int(word) for word in parent.stdout.readline().split()]
    assert processes and parent.stdout.readline() == "busy\n"
    if end is None:
        parent.communicate("\n", timeout=600)
    else:
        parent.send_signal(end)
        parent.wait(timeout=600)
    deadline = time.monotonic() + 600
    while any(_alive(process) for process in processes):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.1)


def _alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_forked_child_gets_a_pool_of_its_own(pool):
    assert pool.run(double, 1) == 2
    child = os.fork()
    if child == 0:
        # Nothing of pytest may run here.
        os._exit(0 if default_pool() is not None and pool.run(double, 2) == 4 else 1)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the forked child hangs")


@pytest.mark.parametrize("setting", [{"workers": 0}, {"time_limit": 0.0}, {"memory_limit": 0}, {"tasks_per_worker": 0}])
def test_settings_that_make_no_sense_are_refused(setting):
    with pytest.raises(ValueError, match="must be positive"):
        WorkerPool(**setting)
