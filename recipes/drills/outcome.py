# SPDX-License-Identifier: Apache-2.0
"""What a drill measures."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What became of a run after a fault, and of the same command started again.

    Attributes:
        exit_status: of the run after the fault; None if it neither ended nor went on and was killed by the drill.
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
