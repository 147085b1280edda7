# SPDX-License-Identifier: Apache-2.0
"""Work that copies of an engine share, in processes that may die."""

import os
import signal
import time

import pytest
from counting_engine import CountingEngine

from prime_ext.generate.backend import BackendError
from prime_ext.generate.engine_processes import EngineProcesses, Failed


@pytest.fixture
def two():
    shares = [{"SHARE": "a"}, {"SHARE": "b"}]
    processes = EngineProcesses(CountingEngine, [0.02, 0.02], shares, in_flight=2)
    yield processes
    processes.close()


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_every_job_is_done_once_and_both_processes_work(two):
    found = dict(two.run(range(40)))
    assert {place: result[0] for place, result in found.items()} == {n: 2 * n for n in range(40)}
    assert {result[2] for result in found.values()} == {"a", "b"}
    assert {result[1] for result in found.values()} == set(two.process_ids)


def test_a_killed_process_loses_its_own_jobs_only_and_the_other_does_the_rest(two):
    victim = two.process_ids[0]
    found = {}
    for place, result in two.run(range(40)):
        if not found:
            os.kill(victim, signal.SIGKILL)
        found[place] = result
    lost = [result for result in found.values() if isinstance(result, Failed)]
    assert sorted(found) == list(range(40)) and 1 <= len(lost) <= 2
    assert {each.reason for each in lost} == {"engine process 1 of 2 was killed by signal 9"}
    assert len(dict(two.run(range(5)))) == 5 and len(two.process_ids) == 1


def test_when_no_process_is_left_the_rest_says_so(two):
    found = dict(two.run(["die"] * 9))
    assert len(found) == 9 and all(isinstance(result, Failed) for result in found.values())
    reasons = {result.reason for result in found.values()}
    assert "engine process 2 of 2 was killed by signal 9" in reasons
    assert any(reason.startswith("no engine process is left: ") for reason in reasons)


def test_an_error_in_a_step_ends_its_process_with_its_message(two):
    found = dict(two.run(["raise"]))
    assert found[0].reason.endswith("ended with status 1: RuntimeError: out of memory")


def test_a_refused_job_fails_alone(two):
    found = dict(two.run([1, "refuse", 3]))
    assert found[1] == Failed("not this one") and found[0][0] == 2 and found[2][0] == 6


def test_a_run_that_is_given_up_does_not_show_in_the_next_one(two):
    run = two.run(range(100, 200))
    next(run)
    run.close()
    assert {place: result[0] for place, result in two.run(range(6))} == {n: 2 * n for n in range(6)}


def test_an_engine_that_does_not_start_is_one_line():
    with pytest.raises(BackendError, match="ended with status 1: RuntimeError: no room for weights while it started"):
        EngineProcesses(CountingEngine, ["broken"], [{}], in_flight=1)


def test_closing_ends_the_processes(two):
    pids = two.process_ids
    two.close()
    deadline = time.monotonic() + 600
    while not all(map(gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(map(gone, pids))
