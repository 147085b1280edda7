# SPDX-License-Identifier: Apache-2.0
"""verl's replay buffers with PRIME's online prompt filter: docs/explanation/async.md.

A synchronous batch consists of the first prompts, in the order of submission, that pass; surplus
prompts return to the queue. So a run can be repeated and resumed exactly, and prompts with short
responses are not preferred.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.utils.skip import SkipManager

from prime_ext.algorithms.prompt_filter import FAILED, KEPT
from prime_ext.methods.store import group_uid
from prime_ext.verl_adapter import rollout_store as transfer
from prime_ext.verl_adapter.prompt_judge import PromptJudge, PromptsExhausted

logger = logging.getLogger(__name__)

# How often the trainer looks for finished rollouts; small models on a CPU have finished long before
# verl's 2 seconds.
POLL_SECONDS = {"cpu": 0.05}


class _PromptFilter(ReplayBuffer):
    """Training batches hold only prompts that the judge keeps.

    Args:
        judge: the filter.
        max_in_flight: most prompts in the system at the same time.
        max_examined: most prompts examined for one batch.
        partial: whether a batch may be smaller when ``max_examined`` is reached.
    """

    def __init__(
        self,
        *,
        judge: PromptJudge,
        max_in_flight: int,
        max_examined: int,
        partial: bool,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.judge = judge
        self.max_in_flight = max_in_flight
        self.max_examined = max_examined
        self.partial = partial

    def _accept_shortage(self, examined: Sequence[str], kept: int, batch_size: int) -> None:
        """Raise PromptsExhausted where a smaller batch is not allowed, or would be empty."""
        message = self.judge.describe_shortage(examined, kept, batch_size, self.partial)
        if not kept or not self.partial:
            raise PromptsExhausted(message)
        logger.warning("%s; training on the smaller batch", message)


def _sort_rows(batch: KVBatchMeta) -> KVBatchMeta:
    batch.reorder(sorted(range(len(batch)), key=batch.keys.__getitem__))
    return batch


class PromptFilterReplayBuffer(_PromptFilter):
    """Replay buffer of the synchronous mode; ``requeue`` takes back surplus prompt ids in order."""

    def __init__(self, *, requeue: Callable[[list[str]], None], **kwargs: Any):
        super().__init__(**kwargs)
        self.requeue = requeue
        self._submitted: list[str] = []
        # Rate of the last step, which only decides how far to generate ahead; in checkpoints.
        self.acceptance_rate = 0.5

    def on_submit(self, uids: Iterable[str]) -> None:
        """Record which prompts were submitted, in order."""
        self._submitted.extend(uids)

    def prompts_to_start(self, batch_size: int) -> int:
        """Return the number of prompts to submit at the start of a step, at most ``max_in_flight``.

        At the acceptance rate of the last step, minus two standard deviations, ``batch_size`` of
        them pass: a missing prompt delays the step by another response, a surplus one costs only
        its work.
        """
        margin = 2 * math.sqrt(batch_size * (1 - self.acceptance_rate))
        return min(
            math.ceil((batch_size + margin) / max(self.acceptance_rate, 0.05)), self.max_in_flight
        )

    @SkipManager.annotate_tq(role="rollout_tq", phase="sample")
    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict]:
        """Return the next prompts that pass, rows ordered by key. Raises PromptsExhausted."""
        if partition_id == "val":
            return super().sample(
                global_steps=global_steps, partition_id=partition_id, batch_size=batch_size
            )

        refills = 0
        last_report = 0.0
        while True:
            self._sync_metadata_from_transfer_queue()
            self._judge_finished(partition_id)
            kept, examined = self._take_first_kept(batch_size)
            in_flight = len(self.pending_keys[partition_id]) + len(self.running_keys[partition_id])
            if len(kept) == batch_size or examined == self.max_examined:
                # Requests to this policy version must end before its weights are replaced.
                if in_flight == 0:
                    break
            else:
                missing = self._prompts_to_submit(batch_size, in_flight)
                if missing > 0:
                    refills += 1
                    self.refill_fn(missing)
                    continue
            last_report = self._wait_for_next_poll(partition_id, last_report)

        looked_at = self._submitted[:examined]
        surplus = self._submitted[examined:]
        if len(kept) < batch_size:
            self._accept_shortage(looked_at, len(kept), batch_size)
        batch = _sort_rows(
            self._materialize_batch(partition_id, kept, dict(self.partitions[partition_id]))
        )
        self.acceptance_rate = len(kept) / examined
        metrics = {
            **self.judge.metrics(looked_at),
            "prime/filter/kept": len(kept),
            "prime/filter/refills": refills,
            "prime/filter/returned_to_queue": len(surplus),
        }
        self._clear_groups(partition_id, self.prompt_global_steps[partition_id].keys() & surplus)
        self.requeue(surplus)
        self.judge.forget(self._submitted)
        self._submitted.clear()
        return batch, metrics

    def _judge_finished(self, partition_id: str) -> None:
        """Judge the prompts whose rollouts have all ended; delete the rollouts of dropped ones."""
        failures = self.failure_keys[partition_id]
        finished = (self.finished_keys[partition_id] | failures) - self.judge.verdicts.keys()
        if finished:
            self.judge.judge(finished, partition_id, self.partitions[partition_id], failures)
            self._clear_groups(partition_id, {uid for uid in finished if not self.judge.keeps(uid)})

    def _take_first_kept(self, batch_size: int) -> tuple[list[str], int]:
        """Return the kept prompts before the first unjudged one, and how many were examined."""
        kept: list[str] = []
        for examined, uid in enumerate(self._submitted):
            if (
                uid not in self.judge.verdicts
                or examined == self.max_examined
                or len(kept) == batch_size
            ):
                return kept, examined
            if self.judge.keeps(uid):
                kept.append(uid)
        return kept, len(self._submitted)

    def _prompts_to_submit(self, batch_size: int, in_flight: int) -> int:
        judged = len(self.judge.verdicts)
        kept = sum(verdict == KEPT for verdict in self.judge.verdicts.values())
        # Weight the last step's rate like a quarter of a batch; otherwise the first few verdicts
        # would decide.
        known = max(4, batch_size // 4)
        rate = (kept + known * self.acceptance_rate) / (judged + known)
        needed = math.ceil(max(0, batch_size - kept) / max(rate, 0.05)) - in_flight
        room = min(self.max_in_flight - in_flight, self.max_examined - len(self._submitted))
        # Once all prompts are judged, one must be submitted, or the loop would never end.
        least = 1 if in_flight == 0 else 0
        return max(min(max(needed, least), room), 0)


class PromptFilterReplayBufferAsync(_PromptFilter, ReplayBufferAsync):
    """Replay buffer of the asynchronous modes; prompt ids must sort in the order of submission."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self._judged_in_step: list[str] = []
        self._judged_since_batch: list[str] = []
        self._kept_in_step = 0

    # ---- called by verl in every round of polling ------------------------------------------------

    def _terminal_eviction_reasons(
        self, global_steps: int, partition_id: str
    ) -> tuple[set[str], set[str], set[str], Counter]:
        """Return stale, dropped and failed prompts, which verl evicts and replaces by new ones."""
        if partition_id == "val":
            return super()._terminal_eviction_reasons(global_steps, partition_id)
        failures = self.failure_keys[partition_id]
        terminal = self.finished_keys[partition_id] | failures
        new = sorted(terminal - self.judge.verdicts.keys())
        if new:
            self.judge.judge(new, partition_id, self.partitions[partition_id], failures)
            self._judged_in_step.extend(new)
            self._judged_since_batch.extend(new)
        failed = {uid for uid in terminal if self.judge.verdicts[uid] == FAILED}
        rejected = {uid for uid in terminal if not self.judge.keeps(uid)} - failed
        # The counter is for verl's filter: the reward that all rollouts of a dropped prompt have.
        return self._stale_terminal_keys(global_steps, partition_id), rejected, failed, Counter()

    def _has_enough_samples(
        self, global_steps: int, partition_id: str, batch_size: int, sampleable_keys: set[str]
    ) -> bool:
        """Decide as verl does, but stop once ``max_examined`` prompts did not contain enough."""
        if partition_id != "val" and len(sampleable_keys) < batch_size:
            if len(self._judged_since_batch) < self.max_examined:
                return False
            self._accept_shortage(self._judged_since_batch, len(sampleable_keys), batch_size)
            return True
        return super()._has_enough_samples(global_steps, partition_id, batch_size, sampleable_keys)

    def _select_prompt_uids(
        self, partition_id: str, sampleable_keys: set[str], batch_size: int
    ) -> tuple[list[str], dict[str, dict], dict[str, int]]:
        """Return the earliest prompts; verl sorts by step and leaves ties to the order of a set."""
        _, rollouts, steps = super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        return sorted(sampleable_keys)[:batch_size], rollouts, steps

    # ---- batches ---------------------------------------------------------------------------------

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict]:
        """Return the next ``batch_size`` prompts that pass the filter, rows ordered by key."""
        batch, metrics = super().sample(
            global_steps=global_steps, partition_id=partition_id, batch_size=batch_size
        )
        if partition_id == "val":
            return batch, metrics
        self._kept_in_step += len({group_uid(key) for key in batch.keys})
        self._judged_since_batch.clear()
        return _sort_rows(batch), metrics

    def step_metrics(self) -> dict[str, float]:
        """Return metrics since the last call: one call per training step, however many batches."""
        self._sync_metadata_from_transfer_queue()
        in_system = set(self.prompt_global_steps["train"])
        finished = self.finished_keys["train"] | self.failure_keys["train"]
        metrics: dict[str, float] = {
            "prime/filter/kept": self._kept_in_step,
            "prime/filter/waiting": sum(
                uid not in self.judge.verdicts or self.judge.keeps(uid) for uid in finished
            ),
            "prime/filter/in_flight": len(in_system) - len(finished),
        }
        if self._judged_in_step:
            metrics.update(self.judge.metrics(self._judged_in_step))
        self.judge.forget(self.judge.verdicts.keys() - in_system)
        self._judged_in_step.clear()
        self._kept_in_step = 0
        return metrics

    # ---- the trainer's queries -------------------------------------------------------------------

    def count_prompts(self) -> int:
        """Count the training prompts in the system, until they are used or evicted."""
        self._sync_metadata_from_transfer_queue()
        return len(self.prompt_global_steps["train"])

    def prompts_to_start(self, batch_size: int) -> int:
        """Return how many prompts fill up the system at the start of a step."""
        return self.max_in_flight - self.count_prompts()

    def count_rollouts(self) -> int:
        """Count the finished training rollouts in the store."""
        self._sync_metadata_from_transfer_queue()
        return len(self.partitions["train"])

    def drop_orphans(self) -> None:
        """Delete rollouts whose prompt is gone: verl saved them before it deleted them."""
        self._sync_metadata_from_transfer_queue()
        prompts = self.prompt_global_steps["train"]
        orphans = [key for key in self.partitions["train"] if group_uid(key) not in prompts]
        if orphans:
            transfer.clear(orphans, "train")
