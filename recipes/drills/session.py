# SPDX-License-Identifier: Apache-2.0
"""A run that is hit again and again: what starts it again after one fault is hit by the next one."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from prime_ext.run.checkpoint import complete_steps
from recipes.drills.inputs import prime_run
from recipes.drills.outcome import Outcome
from recipes.drills.runs import HANG_SECONDS, DrillError, Run, last_line, resumed_from, wait_for_leftovers

Make = Callable[[str], Run]


class Session:
    """One folder, one command, started as often as faults end it.

    Args:
        folder: of the run.
        make: makes the run, given the name of its log.
        own_disk: give the checkpoints a file system of their own, if this user may.
    """

    def __init__(self, folder: Path, make: Make, own_disk: bool = False):
        self.folder, self._make = folder, make
        self.disk = SmallDisk(folder / "checkpoints") if own_disk and os.geteuid() == 0 else None
        self._starts = 0
        self._first = 0
        self.run: Run | None = None

    def live(self) -> Run:
        """The run, once it has saved a step of its own; started if it is not there."""
        if self.run is None or self.run.process is None or self.run.process.poll() is not None:
            self.run = self._make(f"start{self._starts}")
            self._starts += 1
            self._first = max(self.saved(), default=0)
            self.run.start()
        self.run.wait_until(lambda: max(self.saved(), default=0) > self._first)
        return self.run

    def saved(self) -> list[int]:
        """Steps whose checkpoints are whole."""
        return complete_steps(self.folder / "checkpoints")

    def hit(self, fault: Callable[[Run], None]) -> Outcome:
        """Bring the fault about, and wait for the end of the run."""
        run = self.live()
        processes, saved = run.tree(), self.saved()
        since = time.monotonic()
        fault(run)
        return observe(run, saved, processes, since)

    def start_again(self, outcome: Outcome) -> Outcome:
        """Start the same command again until it has saved another step; it is left running."""
        before = max(self.saved(), default=0)
        try:
            run = self.live()
        except DrillError as error:
            note = "; ".join(filter(None, [outcome.note, f"started again: {error}"]))
            return replace(outcome, went_on=False, note=note)
        return replace(outcome, resumed_from=resumed_from(run.log), went_on=max(self.saved()) > before)

    def close(self) -> None:
        """Kill what is left of the run."""
        if self.run is not None and self.run.process is not None and self.run.process.poll() is None:
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


def prime_session(folder: Path, inputs: Path, own_disk: bool) -> Session:
    """A session with PRIME."""
    return Session(folder, lambda name: prime_run(folder, inputs, name=name), own_disk)


def observe(run: Run, saved: list[int], processes: list[psutil.Process], since: float) -> Outcome:
    """Wait for the end of a run that was hit.

    Args:
        run: the run.
        saved: steps that were whole before.
        processes: of the run, before the fault.
        since: time of the fault (``time.monotonic``).
    """
    status = run.ended(HANG_SECONDS)
    seconds = time.monotonic() - since
    if status is None:
        processes = [*processes, *run.tree()]
        run.kill()
        took, left = wait_for_leftovers(processes, seconds=0.0)
    else:
        took, left = wait_for_leftovers(processes)
    return Outcome(
        exit_status=status,
        seconds=round(seconds, 1),
        leftover_seconds=round(took, 1),
        leftovers=left,
        # A command that is killed says nothing.
        last_line=last_line(run.log, run.folder) if status is None or status >= 0 else "",
        saved=saved,
        whole=complete_steps(run.checkpoints),
    )
