# SPDX-License-Identifier: Apache-2.0
"""A small training run that is started, watched, hit and started again: its processes, its log, its checkpoints."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from prime_ext.run.checkpoint import complete_steps
from recipes.smoke.prepare import overrides, prepare
from recipes.study_runs import ROOT

# A start takes a minute on two idle cores, and many on busy ones. What has not happened by then never will.
START_SECONDS = 1800.0
# After a fault, how long a run may go on doing nothing before it counts as hanging.
HANG_SECONDS = 300.0
# How long processes may outlive their run.
LEFTOVER_SECONDS = 60.0

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TQ_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Else Ray starts a process for each of its (logical) processors beforehand.
    "RAY_prestart_worker_first_driver": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
# A checkpoint after every step, and more steps than any test comes to.
EVERY_STEP = [
    "trainer.total_training_steps=400",
    "trainer.save_freq=1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    # So small that the policy, and with it what passes the filter, stays as it is for all the tests.
    "actor_rollout_ref.actor.optim.lr=1e-7",
]
# An untrained PRM would be shut out by the gate, so the paper's form.
PRIME = ["variant=paper", "prm.mini_batch_size=2", "prm.optim.lr=1e-3"]


class NotReached(RuntimeError):
    """The fault could not be brought about, or the run did not come to where it should."""


@dataclass(frozen=True)
class Outcome:
    """What became of a run after a fault, and of the same command started again.

    Attributes:
        exit_status: of the run after the fault; None if it neither ended nor went on and was killed by the test.
            Negative: a signal.
        seconds: from the fault to the end of the run, or as long as it was watched; from the start, for a run that has
            its fault from the start.
        leftover_seconds: how long its processes outlived it.
        leftovers: names of the processes that had to be killed after that.
        last_line: what the user sees.
        saved: steps whose checkpoints were whole when the fault came.
        whole: those that were whole after the run had ended.
        survived: whether the run saved another step after the fault, so that it had no end to wait for.
        resumed_from: step that the same command, started again, went on from; None if it was not, or began anew.
        went_on: whether that saved another step; None if it was not started again.
        note: what else was seen; empty if nothing.
    """

    exit_status: int | None
    seconds: float
    leftover_seconds: float
    leftovers: list[str]
    last_line: str
    saved: list[int]
    whole: list[int]
    survived: bool = False
    resumed_from: int | None = None
    went_on: bool | None = None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For the file: ``saved`` is a number there, and ``lost`` has the steps that were not whole any more."""
        lost = sorted(set(self.saved) - set(self.whole))
        values = {key: value for key, value in asdict(self).items() if key != "whole"}
        return {**values, "saved": len(self.saved), "lost": lost}


class Run:
    """One start of PRIME (``family="prime"``) or PSPO-WRS (``"pspo"``), in ``folder`` with the log ``<name>.log``."""

    def __init__(self, folder: Path, inputs: Path, more: Sequence[str] = (), name: str = "run", family: str = "prime"):
        prepare(family, inputs)
        of_family = PRIME if family == "prime" else []
        self.folder, self.family, self.log_path = folder, family, folder / f"{name}.log"
        self.overrides = [*overrides(family, inputs), *EVERY_STEP, *of_family, *more]
        self.process: subprocess.Popen | None = None
        self.started = 0.0

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def saved(self) -> list[int]:
        """Steps whose checkpoints are whole."""
        return complete_steps(self.folder / "checkpoints")

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> "Run":
        """Start it, in a session of its own."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-u", "-m", "prime_ext.train", f"--config-name={self.family}_trainer_cpu"]
        places = [f"trainer.default_local_dir={self.folder}/checkpoints", f"hydra.run.dir={self.folder}/hydra"]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {"PYTHONPATH": path, "VERL_FILE_LOGGER_PATH": str(self.folder / "metrics.jsonl")}
        with self.log_path.open("w") as stream:
            self.process = subprocess.Popen(
                [*command, *places, *self.overrides], env=os.environ | ENVIRONMENT | own, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True,
            )  # fmt: skip
        self.started = time.monotonic()
        return self

    def tree(self) -> list[psutil.Process]:
        """The processes of the run, the one that was started first."""
        try:
            first = psutil.Process(self.process.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def find(self, title: str) -> psutil.Process:
        """The process of the run that Ray has given this title.

        Raises:
            NotReached: there is none.
        """
        for process in self.tree()[1:]:
            try:
                if title in " ".join(process.cmdline()):
                    return process
            except psutil.Error:
                continue
        raise NotReached(f"no process of the run is called {title}")

    def wait_until(self, condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait for ``condition`` while the run goes on.

        Raises:
            NotReached: the run ended first, or the time is up.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            if not self.running():
                raise NotReached(f"the run ended with {self.process.returncode}: {last_line(self.log, self.folder)}")
            if time.monotonic() > deadline:
                end = last_line(self.log, self.folder)
                raise NotReached(f"not reached in {seconds:.0f} s; the log ends with: {end}")
            time.sleep(0.02)

    def ended(self, seconds: float) -> int | None:
        """Exit status of the run; None if it is still there after ``seconds``."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """SIGKILL to every process of the run."""
        kill_all(self.tree())
        self.process.wait()

    def outcome(self, saved: list[int], processes: list[psutil.Process], since: float) -> Outcome:
        """Wait for the end of a run that was hit at the time ``since`` (``time.monotonic``).

        Args:
            saved: steps that were whole before.
            processes: of the run, before the fault.
            since: time of the fault.
        """
        status = self.ended(HANG_SECONDS)
        seconds = time.monotonic() - since
        if status is None:
            processes = [*processes, *self.tree()]
            self.kill()
        took, left = wait_for_leftovers(processes, 0.0 if status is None else LEFTOVER_SECONDS)
        # A command that is killed says nothing.
        line = last_line(self.log, self.folder) if status is None or status >= 0 else ""
        return Outcome(status, round(seconds, 1), round(took, 1), left, line, saved, self.saved())


class Session:
    """One folder, one command, started as often as faults end it.

    Args:
        folder: of the run.
        make: makes the run, given the name of its log.
        own_disk: give the checkpoints a file system of their own, if this user may.
    """

    def __init__(self, folder: Path, make: Callable[[str], Run], own_disk: bool = False):
        self.folder, self.make = folder, make
        self.disk = SmallDisk(folder / "checkpoints") if own_disk and os.geteuid() == 0 else None
        self._starts = self._first = 0
        self.run: Run | None = None

    def live(self) -> Run:
        """The run, once it has saved a step of its own; started if it is not there."""
        if self.run is None or not self.run.running():
            self.run = self.make(f"start{self._starts}")
            self._starts += 1
            self._first = max(self.run.saved(), default=0)
            self.run.start()
        run = self.run
        run.wait_until(lambda: max(run.saved(), default=0) > self._first)
        return run

    def hit(self, fault: Callable[[Run], object]) -> Outcome:
        """Bring the fault about, and wait for the end of the run."""
        run = self.live()
        processes, saved, since = run.tree(), run.saved(), time.monotonic()
        fault(run)
        return run.outcome(saved, processes, since)

    def start_again(self, outcome: Outcome) -> Outcome:
        """Start the same command again until it has saved another step; it is left running."""
        before = max(complete_steps(self.folder / "checkpoints"), default=0)
        try:
            run = self.live()
        except NotReached as error:
            note = "; ".join(filter(None, [outcome.note, f"started again: {error}"]))
            return replace(outcome, went_on=False, note=note)
        return replace(outcome, resumed_from=resumed_from(run.log), went_on=max(run.saved()) > before)

    def close(self) -> None:
        """Kill what is left of the run."""
        if self.run is not None and self.run.running():
            processes = self.run.tree()
            self.run.kill()
            wait_for_leftovers(processes, seconds=0.0)
        if self.disk is not None:
            self.disk.close()
            self.disk = None


class SmallDisk:
    """A file system of its own for the checkpoints, in memory. Needs root."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._mount("-t", "tmpfs", "-o", "size=1g", "tmpfs")

    def _mount(self, *options: str) -> None:
        subprocess.run(["mount", *options, str(self.folder)], check=True)

    def fill(self, left: int) -> None:
        """Leave so many bytes."""
        self._mount("-o", f"remount,size={shutil.disk_usage(self.folder).used + left}")

    def empty(self) -> None:
        """Leave as many as in the beginning."""
        self._mount("-o", "remount,size=1g")

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=False)


def kill_all(processes: Sequence[psutil.Process]) -> None:
    """SIGKILL to those of these processes that are still there."""
    for process in processes:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


def alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_leftovers(processes: Sequence[psutil.Process], seconds: float) -> tuple[float, list[str]]:
    """Wait until none of them runs any more. Returns the seconds, and what those are called that had to be killed."""
    start = time.monotonic()
    while (left := list(filter(alive, processes))) and time.monotonic() - start < seconds:
        time.sleep(0.2)
    names = sorted(map(name_of, left))
    kill_all(left)
    return time.monotonic() - start, names


def name_of(process: psutil.Process) -> str:
    """What Ray calls a process, or the name of its program or module."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return "gone"
    if words and words[0].startswith("ray::"):
        return words[0].split()[0]
    scripts = [word for word in words[1:] if word.endswith(".py")]
    return Path((scripts or words or ["unknown"])[0]).name


def plain(text: str, folder: Path) -> str:
    """A line of a log without colours, the process it came from, and paths of this machine."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    text = re.sub(r"^\(.{1,80}? pid=[^)]*\)\s*", "", text).strip()
    text = re.sub(r"^\w+:[\d\- :,]+:(?=\S)", "", text.replace(str(folder), "RUN").replace(str(ROOT), "PRIME_EXT"))
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", text)
    text = re.sub(r"\bprocess \d+ on [\w.\-]+", "process ... on ...", text)
    return re.sub(r"\b(pid|ip|actor_id)[=: ]+[\w.\-]+", r"\1=...", text)


def last_line(log: str, folder: Path, limit: int = 400) -> str:
    """The line that tells a user what happened: the last of prime_ext's own, else the last that names an error."""
    lines = [line for line in (plain(line, folder) for line in log.splitlines()) if line]
    own = [line for line in lines if line.startswith("prime_ext:")]
    errors = [line for line in lines if re.search(r"(Error|Exception|Failed|Exhausted|Died|InUse)\b.*:", line)]
    found = (own or errors or lines or [""])[-1]
    return found if len(found) <= limit else f"{found[: limit - 3]}..."


def resumed_from(log: str) -> int | None:
    """The step that a start went on from, as verl logs it."""
    found = re.search(r"Resuming from \S*global_step_(\d+)", log)
    return int(found[1]) if found else None
