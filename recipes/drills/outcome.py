# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What a drill measures."""

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil

from prime_ext.trainer.checkpoint import complete_steps
from recipes.drills.runs import HANG_SECONDS, Run, last_line, resumed_from, wait_for_leftovers


@dataclass(frozen=True)
class Outcome:
    """What became of a run after a fault, and of the same command started again.

    Attributes:
        exit_status: of the run after the fault; None if it hung and was killed by the drill. Negative: a signal.
        seconds: from the fault to the end of the run; of a run that hung, how long it was watched.
        leftover_seconds: how long its processes outlived it.
        leftovers: processes that had to be killed after that.
        last_line: what the user sees.
        saved: steps whose checkpoints were whole when the fault came.
        whole: those that were whole after the run had ended.
        again_status: exit status of the same command started again; None if that was not part of the drill.
        resumed_from: step that it went on from; None from the beginning.
        finished: whether the last step was reached in the end.
        note: what else was seen, one sentence; empty if nothing.
    """

    exit_status: int | None
    seconds: float
    leftover_seconds: float
    leftovers: int
    last_line: str
    saved: list[int]
    whole: list[int]
    again_status: int | None = None
    resumed_from: int | None = None
    finished: bool = False
    note: str = ""

    @property
    def lost(self) -> list[int]:
        """Steps that were saved and are no longer whole."""
        return sorted(set(self.saved) - set(self.whole))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


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
    took, left = wait_for_leftovers(processes, seconds=0.0 if status is None else 60.0)
    return Outcome(
        exit_status=status,
        seconds=round(seconds, 1),
        leftover_seconds=round(took, 1),
        leftovers=left,
        last_line=last_line(run.log, run.folder),
        saved=saved,
        whole=complete_steps(run.checkpoints),
    )


def start_again(run: Run, outcome: Outcome, last_step: int) -> Outcome:
    """Start the same command again, to the end, and say how that went."""
    again = Run(run.folder, run.config, run.overrides, "again").start()
    try:
        status = again.ended(2 * HANG_SECONDS)
    finally:
        if again.ended(0) is None:
            again.kill()
    log = again.log
    return replace(
        outcome,
        again_status=status,
        resumed_from=resumed_from(log),
        finished=last_step in complete_steps(run.checkpoints),
        note=outcome.note or ("" if status == 0 else f"started again: {last_line(log, run.folder)}"),
    )
