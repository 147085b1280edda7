# SPDX-License-Identifier: Apache-2.0
"""The fault tests' own logic. They themselves are whole runs: python -m recipes.fault_tests."""

import json
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from prime_ext.utils.files import read_json
from recipes.fault_tests.__main__ import FAULTS, add_result, table
from recipes.fault_tests.faults import ClassifyServer
from recipes.fault_tests.runs import NotReached, Outcome, Run, alive, last_line, plain, resumed_from, wait_for_leftovers
from recipes.study_runs import ROOT

FOLDER = Path("/somewhere/run")
OUTCOME = Outcome(1, 12.34, 0.2, [], "why", saved=[1, 2], whole=[1, 2], resumed_from=2, went_on=True)


def test_what_a_log_says():
    log = "start\nprime_ext: the run failed\n\x1b[36m(A pid=7)\x1b[0m ValueError: x\n\nSet HYDRA_FULL_ERROR\n"
    assert last_line(log, FOLDER) == "prime_ext: the run failed"
    assert last_line(log.replace("prime_ext:", ""), FOLDER) == "ValueError: x"
    assert (
        last_line("a\nb\n\n", FOLDER) == "b"
        and last_line("", FOLDER) == ""
        and len(last_line("x" * 999, FOLDER)) == 400
    )
    assert resumed_from("x\nResuming from /a/checkpoints/global_step_12, setting global step to 12\n") == 12
    assert resumed_from("Training from scratch") is None
    # No place of this machine.
    line = f"(Trainer pid=12, ip=10.0.0.1) \x1b[31min {FOLDER}/checkpoints and {ROOT}/prime_ext; process 12 on host7"
    assert plain(line, FOLDER) == "in RUN/checkpoints and PRIME_EXT/prime_ext; process ... on ..."
    assert plain("WARNING:2026-11-22 04:21:37,227:no http://127.0.0.1:4711/x", FOLDER) == "no http://127.0.0.1:PORT/x"


def test_results_are_kept_in_one_order_and_what_was_lost_is_said(tmp_path):
    path, names = tmp_path / "results.json", list(FAULTS)
    add_result(path, names[3], replace(OUTCOME, exit_status=None))
    add_result(path, names[0], replace(OUTCOME, whole=[1], leftovers=["raylet"], went_on=False))
    assert list(read_json(path)["faults"]) == [names[0], names[3]]
    # tests/recipes/test_studies.py has the table of the kept results, in which nothing was lost and nothing hung.
    first, second = table(read_json(path)).splitlines()[2:]
    assert all(words in first for words in ("`raylet` had to be killed", "**lost: steps [2]**", "**does not go on**"))
    assert "hangs (watched for 12 s)" in second


@pytest.fixture
def sleeper(tmp_path):
    """A run whose command sleeps, with a child of a known title."""
    run = Run(tmp_path, tmp_path / "inputs")
    child = "[sys.executable, '-c', 'import time; time.sleep(999)', 'ray::Title']"
    code = f"import subprocess, sys; subprocess.run({child})"
    run.process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    run.wait_until(lambda: len(run.tree()) == 2 and any("ray::Title" in word for word in run.tree()[1].cmdline()))
    yield run
    run.kill()


def test_processes_are_found_and_killed_with_the_whole_tree(sleeper):
    processes = sleeper.tree()
    assert sleeper.find("ray::Title").pid == processes[1].pid
    with pytest.raises(NotReached, match="ray::Other"):
        sleeper.find("ray::Other")
    assert sleeper.ended(0.01) is None
    sleeper.kill()
    assert sleeper.ended(600) == -9
    assert wait_for_leftovers(processes, 600)[1] == [] and not any(map(alive, processes))


def test_processes_that_stay_are_killed_and_named_and_waiting_ends(sleeper):
    with pytest.raises(NotReached, match="not reached"):
        sleeper.wait_until(lambda: False, seconds=0.1)
    (name,) = wait_for_leftovers(sleeper.tree()[1:], 0.3)[1]
    assert name.startswith("python")
    psutil.Process(sleeper.process.pid).kill()
    with pytest.raises(NotReached, match="the run ended with"):
        sleeper.wait_until(lambda: False)


def test_the_server_answers_goes_away_and_comes_back():
    server = ClassifyServer()
    body = json.dumps({"input": ["a", [1, 2]]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/classify", body)
    for _ in range(2):
        server.start()
        with urllib.request.urlopen(request, timeout=600) as response:
            assert [answer["probs"] for answer in json.load(response)["data"]] == [[0.2, 0.3, 0.5]] * 2
        server.stop()
        with pytest.raises(OSError):
            urllib.request.urlopen(request, timeout=600)
