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
"""Reliability gate: the process rewards count as much as the PRM has shown that it can order unseen responses."""

from dataclasses import dataclass


@dataclass
class ReliabilityGate:
    """g = clip(2 * e - 1, 0, 1), where e is the running pair accuracy of the PRM before it trains on the batch.

    An untrained PRM orders pairs like a coin (0.5), which closes the gate; normalisation alone would scale its noise up
    to the size of a real signal. Not part of the paper; a guard of this package.

    Attributes:
        decay: weight of the past in the running mean.
        average: running mean of the pair accuracy; 0.5 at the start. Part of the checkpoint.
    """

    decay: float = 0.8
    average: float = 0.5

    def update(self, pair_accuracy: float | None) -> float:
        """Take in the pair accuracy of a new batch (None: no pair to judge by) and return the gate in [0, 1]."""
        if pair_accuracy is not None:
            self.average = self.decay * self.average + (1.0 - self.decay) * pair_accuracy
        return min(1.0, max(0.0, 2.0 * self.average - 1.0))
