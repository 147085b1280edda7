# SPDX-License-Identifier: Apache-2.0
"""Two runs never work in one folder, and a killed one leaves no lock."""

import logging
import os
import subprocess
import sys
import threading

import pytest
from omegaconf import OmegaConf

from prime_ext import train
from prime_ext.utils.run_store import RunError, RunLock


def test_the_second_run_is_told_who_has_the_folder(tmp_path):
    first = RunLock(tmp_path / "checkpoints")
    first.acquire()
    with pytest.raises(
        RunError, match=f"checkpoints is in use by process {os.getpid()} on .*choose another"
    ):
        RunLock(tmp_path / "checkpoints").acquire(wait_seconds=0)
    first.release()
    RunLock(tmp_path / "checkpoints").acquire(wait_seconds=0)


def test_it_waits_for_an_ending_run_and_warns_once(tmp_path, caplog):
    first = RunLock(tmp_path)
    first.acquire()
    end = threading.Timer(1.0, first.release)
    end.start()
    caplog.set_level(logging.WARNING)
    RunLock(tmp_path).acquire(wait_seconds=600)
    end.join()
    (line,) = caplog.messages
    assert f"in use by process {os.getpid()} on " in line and line.endswith(
        "waiting up to 600 s for it to end"
    )


def test_a_killed_run_holds_nothing(tmp_path):
    hold = (
        "import pathlib, sys, time; from prime_ext.utils.run_store import RunLock; lock ="
        " RunLock(pathlib.Path(sys.argv[1])); lock.acquire(0); print('held', flush=True);"
        " time.sleep(3600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, tmp_path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=f"process {process.pid}"):
            RunLock(tmp_path).acquire(wait_seconds=0)
        process.kill()
    RunLock(tmp_path).acquire(wait_seconds=0)


def test_a_command_is_refused_before_ray_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(
        train.RunLock, "acquire", lambda lock, _take=RunLock.acquire: _take(lock, 0)
    )
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}})
    # It leaves the folder to its trainer.
    assert train.check_run_folder(config) == train.check_run_folder(config) == ""
    first = RunLock(tmp_path)
    first.acquire()
    assert "choose another folder" in train.check_run_folder(config)
    # A validation alone writes no checkpoints.
    assert (
        train.check_run_folder(OmegaConf.create({"trainer": {**config.trainer, "val_only": True}}))
        == ""
    )
    (tmp_path / "file").write_text("")
    config.trainer.default_local_dir = str(tmp_path / "file" / "x")
    problem = train.check_run_folder(config)
    assert "Not a directory" in problem and "\n" not in problem
