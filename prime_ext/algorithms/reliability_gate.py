# SPDX-License-Identifier: Apache-2.0
"""Reliability gate: the weight of process rewards, from the PRM's accuracy on unseen responses."""

from dataclasses import dataclass

from prime_ext.algorithms.prm_accuracy import PairCount


@dataclass
class ReliabilityGate:
    """g = clip(2 * e - 1, 0, 1), with e the PRM's running pair accuracy on unseen responses.

    e counts a batch before the PRM trains on it. An untrained PRM orders pairs like a coin (0.5),
    which closes the gate; normalization alone would scale its noise up to the size of a signal. Not
    part of the paper. e is the ratio of two running means, of the pairs in the right order and of
    all pairs, so that every pair weighs the same.

    Attributes:
        decay: weight of the past in both running means.
        start: e before the first pair, with the weight of as many pairs as the first batch has.
        right: running mean of the pairs in the right order, None before the first pair; in
            checkpoints.
        total: running mean of all pairs, likewise.
    """

    decay: float = 0.8
    start: float = 0.5
    right: float | None = None
    total: float | None = None

    @property
    def average(self) -> float:
        """Return e in [0, 1]."""
        return self.start if self.right is None or self.total is None else self.right / self.total

    def update(self, pairs: PairCount) -> float:
        """Take in the pairs of a new batch and return the gate in [0, 1]."""
        if pairs.total > 0:
            right = self.right
            total = self.total
            if right is None or total is None:
                right = self.start * pairs.total
                total = pairs.total
            self.right = self.decay * right + (1.0 - self.decay) * pairs.right
            self.total = self.decay * total + (1.0 - self.decay) * pairs.total
        return min(1.0, max(0.0, 2.0 * self.average - 1.0))
