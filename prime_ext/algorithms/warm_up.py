# SPDX-License-Identifier: Apache-2.0
"""Warm-up of the process rewards: the PRM learns first, and its rewards count once it has had the time or the skill."""

from dataclasses import dataclass


@dataclass
class ProcessWarmUp:
    """Factor 0 on the process coefficient until the warm-up is over, then 1 for good.

    It is over after ``steps`` steps, or once the running pair accuracy of the PRM (that of the reliability gate) has
    reached ``accuracy``, whichever comes first if both are given; with neither there is no warm-up. The policy is
    trained on the outcome meanwhile. An option of this package, not part of the paper.

    Attributes:
        steps: number of steps without process rewards; None waits for the accuracy alone.
        accuracy: running pair accuracy that ends the warm-up; None waits for the steps alone.
        finished: whether it is over. Part of the checkpoint.
    """

    steps: int | None = None
    accuracy: float | None = None
    finished: bool = False

    def factor(self, step: int, running_accuracy: float | None = None) -> float:
        """0.0 or 1.0 for a step, counted from 0 and never reset, with the running accuracy up to and including it."""
        if self.steps is None and self.accuracy is None:
            return 1.0
        long_enough = self.steps is not None and step >= self.steps
        good_enough = self.accuracy is not None and running_accuracy is not None and running_accuracy >= self.accuracy
        self.finished = self.finished or long_enough or good_enough
        return float(self.finished)
