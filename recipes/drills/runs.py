# SPDX-License-Identifier: Apache-2.0
"""Starting a small training run, watching it, and hitting it: its processes, its log, its checkpoints."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]

# A start takes a minute on two idle cores, and many on busy ones. What has not happened by then never will.
START_SECONDS = 1800.0
# After a fault, how long a run may go on doing nothing before it counts as hanging.
HANG_SECONDS = 300.0
# How long processes may outlive their run.
LEFTOVER_SECONDS = 60.0

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_FROM_WORKER = re.compile(r"^\(.{1,80}? pid=[^)]*\)\s*")
_LOG_HEAD = re.compile(r"^(\w+):[\d\- :,]+:(?=\S)")
_RESUMING = re.compile(r"Resuming from \S*global_step_(\d+)")
_ERROR = re.compile(r"\b[\w.]*(Error|Exception|Failed|Exhausted|Died|InUse)\b.*:")


class DrillError(RuntimeError):
    """The drill itself did not come about."""


def environment(metrics: Path) -> dict[str, str]:
    """Environment of a run: one thread, no hub, metrics to ``metrics``."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "HF_HUB_OFFLINE": "1",
        "TQ_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Else Ray starts a process for each of its (logical) processors beforehand.
        "RAY_prestart_worker_first_driver": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }


@dataclass
class Run:
    """One start of one command.

    Attributes:
        folder: of the run: checkpoints, metrics, logs.
        config: name of the configuration.
        overrides: of it.
        name: of the log, so that several starts in one folder have their own.
    """

    folder: Path
    config: str
    overrides: Sequence[str]
    name: str
    process: subprocess.Popen | None = None
    started: float = field(default=0.0)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def log_path(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self) -> "Run":
        """Start it, in a session of its own."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-u", "-m", "prime_ext.train", f"--config-name={self.config}",
            f"trainer.default_local_dir={self.checkpoints}", f"hydra.run.dir={self.folder}/hydra", *self.overrides,
        ]  # fmt: skip
        with self.log_path.open("w") as stream:
            self.process = subprocess.Popen(
                command, env=environment(self.folder / "metrics.jsonl"), stdout=stream, stderr=stream,
                stdin=subprocess.DEVNULL, start_new_session=True, cwd=self.folder,
            )  # fmt: skip
        self.started = time.monotonic()
        return self

    def tree(self) -> list[psutil.Process]:
        """The processes of the run, the one that was started first."""
        assert self.process is not None
        try:
            first = psutil.Process(self.process.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def find(self, title: str) -> psutil.Process:
        """The process of the run that Ray has given this title.

        Raises:
            DrillError: there is none.
        """
        for process in self.tree()[1:]:
            try:
                if title in " ".join(process.cmdline()):
                    return process
            except psutil.Error:
                continue
        raise DrillError(f"no process of the run is called {title}")

    def wait_until(self, condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait for ``condition`` while the run goes on.

        Raises:
            DrillError: the run ended first, or the time is up.
        """
        assert self.process is not None
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None:
                raise DrillError(f"the run ended with {self.process.returncode}: {last_line(self.log, self.folder)}")
            if time.monotonic() > deadline:
                raise DrillError(
                    f"not reached in {seconds:.0f} s; the log ends with: {last_line(self.log, self.folder)}"
                )
            time.sleep(0.02)

    def ended(self, seconds: float) -> int | None:
        """Exit status of the run; None if it is still there after ``seconds``."""
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """SIGKILL to every process of the run."""
        kill_all(self.tree())
        assert self.process is not None
        self.process.wait()


def kill_all(processes: Sequence[psutil.Process]) -> None:
    """SIGKILL to those of these processes that are still there."""
    for process in processes:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


def alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; a zombie does not."""
    found = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def wait_for_leftovers(
    processes: Sequence[psutil.Process], seconds: float = LEFTOVER_SECONDS
) -> tuple[float, list[str]]:
    """Wait until none of them runs any more. Returns the seconds, and what those are called that had to be killed."""
    start = time.monotonic()
    while (left := alive(processes)) and time.monotonic() - start < seconds:
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
    text = _FROM_WORKER.sub("", _COLOURS.sub("", text)).strip()
    text = _LOG_HEAD.sub("", text.replace(str(folder), "RUN").replace(str(ROOT), "PRIME_EXT"))
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", text)
    text = re.sub(r"\bprocess \d+ on [\w.\-]+", "process ... on ...", text)
    return re.sub(r"\b(pid|ip|actor_id)[=: ]+[\w.\-]+", r"\1=...", text)


def last_line(log: str, folder: Path, limit: int = 400) -> str:
    """The line that tells a user what happened: the last of prime_ext's own, else the last that names an error."""
    lines = [line for line in (plain(line, folder) for line in log.splitlines()) if line]
    own = [line for line in lines if line.startswith("prime_ext:")]
    errors = [line for line in lines if _ERROR.search(line)]
    found = (own or errors or lines or [""])[-1]
    return found if len(found) <= limit else f"{found[: limit - 3]}..."


def resumed_from(log: str) -> int | None:
    """The step that a start went on from, as verl logs it."""
    found = _RESUMING.search(log)
    return int(found[1]) if found else None
