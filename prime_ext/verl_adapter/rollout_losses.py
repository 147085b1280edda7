# SPDX-License-Identifier: Apache-2.0
"""Rollouts that agent loops began and lost to an exception: counts, and a limit.

verl logs such an exception, and trains on the rest of the group. Long or difficult responses
may fail more often, so the rest would be a biased sample. Here a prompt with a lost rollout leaves
the batch, and a run that loses too many ends with the last exception.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from prime_ext.methods.store import group_uid, session_key
from prime_ext.verl_adapter import rollout_store as transfer

logger = logging.getLogger(__name__)

# Shares of the rollouts above which a step warns, and above which the run ends.
WARN_RATE = 0.01
MOST_LOST = 0.25


class RolloutsLost(RuntimeError):
    """Too many rollouts ended with an error; the message has the last one."""


class RolloutLosses:
    """Count of lost rollouts, from the metadata of a replay buffer of verl.

    Args:
        rollouts: number of rollouts per prompt, by partition.
        enough: number of training rollouts after which the limit applies.
    """

    def __init__(self, rollouts: Mapping[str, int], enough: int):
        self._rollouts = rollouts
        self._enough = enough
        self._seen: dict[str, set[str]] = defaultdict(set)
        self.incomplete: dict[str, set[str]] = defaultdict(set)
        # Counts by partition since the limit was last applied.
        self._ended: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        # Counts of training rollouts in this step.
        self._step_ended = 0
        self._step_lost = 0
        self._last_error = "an agent loop returned no output"

    def look(self, buffer: Any) -> None:
        """Count the rollouts of prompts that have ended since the last call.

        Prompts with lost rollouts become failures in the buffer's metadata.
        """
        for partition_id, expected in self._rollouts.items():
            failures = buffer.failure_keys[partition_id]
            ended = buffer.finished_keys[partition_id] | failures
            new = ended - self._seen[partition_id]
            self._seen[partition_id] = ended
            sessions = {session_key(key) for key in buffer.partitions[partition_id]}
            present = Counter(map(group_uid, sessions))
            lost = {uid: expected - present[uid] for uid in new if present[uid] < expected}
            if lost:
                errors = transfer.read_errors(partition_id, lost)
                self._last_error = errors[-1] if errors else self._last_error
            n_lost = sum(lost.values())
            self._ended[partition_id] += expected * len(new)
            self._lost[partition_id] += n_lost
            if partition_id == "train":
                self._step_ended += expected * len(new)
                self._step_lost += n_lost
            incomplete = (self.incomplete[partition_id] & ended) | lost.keys()
            self.incomplete[partition_id] = incomplete
            buffer.finished_keys[partition_id] -= incomplete
            failures |= incomplete

    def forget(self) -> None:
        """Start to count from zero: rollouts from a checkpoint count as complete."""
        for counts in (self.incomplete, self._ended, self._lost):
            counts.clear()
        self._step_ended = self._step_lost = 0

    def apply_limit(self, buffer: Any) -> None:
        """Raise RolloutsLost if too many are lost, once enough have ended."""
        for partition_id in self._rollouts:
            ended = self._ended[partition_id]
            if partition_id == "train":
                complete = ended >= self._enough
            else:
                running = buffer.pending_keys[partition_id] | buffer.running_keys[partition_id]
                complete = ended > 0 and not running
            if not complete:
                continue
            lost = self._lost[partition_id]
            if lost > MOST_LOST * ended:
                raise RolloutsLost(self._describe(lost, ended))
            if partition_id != "train" and lost > WARN_RATE * ended:
                logger.warning("validation: %s", self._describe(lost, ended))
            self._ended[partition_id] = self._lost[partition_id] = 0

    def end_step(self) -> int:
        """Return how many training rollouts the step has lost; warn above ``WARN_RATE``."""
        lost = self._step_lost
        if lost > WARN_RATE * self._step_ended:
            logger.warning("%s", self.describe_step("their prompts have left the batch"))
        self._step_ended = self._step_lost = 0
        return lost

    def describe_step(self, consequence: str) -> str:
        """Return a line about the step's lost rollouts."""
        return f"{self._describe(self._step_lost, self._step_ended)}; {consequence}"

    def _describe(self, lost: int, ended: int) -> str:
        return f"{lost} of {ended} rollouts were lost, the last one to {self._last_error}"
