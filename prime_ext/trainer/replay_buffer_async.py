# SPDX-License-Identifier: Apache-2.0
"""Replay buffer with PRIME's online prompt filter for verl's asynchronous trainers.

Prompts are generated while the trainer is busy, so a batch is drawn from what has finished. Three rules keep that as
fair as it can be:

- The batch consists of the earliest submitted of the finished prompts that passed the filter. The rest waits for the
  next batch; nothing that was kept is thrown away.
- Every prompt that leaves the filter is replaced by one new prompt, so the number of prompts in the system (pending,
  generating, or kept and waiting) is the same at the start of every step. A slow prompt is overtaken, never forgotten.
- verl's staleness control applies: ``trainer.v1.sampler.max_off_policy_{threshold,strategy}``.

Which prompts have finished is a matter of time, hence so are the batches. With ``max_off_policy_strategy=wait`` and
``max_off_policy_threshold=1`` the buffer waits until nothing is generating, and batches are repeatable again.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from prime_ext.algorithms.prompt_filter import FAILED
from prime_ext.trainer.prompt_judge import PromptJudge, PromptsExhausted
from prime_ext.utils import transfer_queue as transfer


def staleness_metrics(tags: Sequence[Mapping[str, Any]], step: int) -> dict[str, float]:
    """Staleness of a batch, in weight updates of the rollout servers.

    The servers hold version ``step - 1`` when step ``step`` begins: the weights that the step before ended with. A
    rollout whose first token was drawn by version v has the staleness ``step - 1 - v``; 0 is on-policy. It is partial
    when it was interrupted by a weight update and finished by a later version.

    Args:
        tags: of the rollouts; verl notes the first and the last version in ``min_global_steps`` and
            ``max_global_steps``. Padding, and rollouts of servers that report no version, are left out.
        step: number of the training step, from 1.

    Returns:
        ``prime/staleness/{mean,max}`` over the first tokens, ``.../last_token/mean`` over the last ones, and the
        fraction of partial rollouts; empty when nothing is known.
    """
    versions = [
        (int(tag["min_global_steps"]), int(tag["max_global_steps"]))
        for tag in tags
        if not transfer.is_padding(tag) and tag.get("min_global_steps") is not None
    ]
    if not versions:
        return {}
    first = [step - 1 - version for version, _ in versions]
    last = [step - 1 - version for _, version in versions]
    return {
        "prime/staleness/mean": sum(first) / len(first),
        "prime/staleness/max": max(first),
        "prime/staleness/last_token/mean": sum(last) / len(last),
        "prime/staleness/partial_fraction": sum(old != new for old, new in versions) / len(versions),
    }


logger = logging.getLogger(__name__)


class PromptFilterReplayBufferAsync(ReplayBufferAsync):
    """verl's asynchronous replay buffer whose training batches hold only prompts inside the accuracy band.

    Args:
        judge: the filter.
        max_examined: prompts examined for one batch, at most.
        partial: whether a batch may be smaller when ``max_examined`` is reached; otherwise that is an error.
        kwargs: verl's own arguments.

    Prompt ids have to sort in the order of submission, as those of :class:`PrimeTrainerMixin` do.
    """

    def __init__(self, *, judge: PromptJudge, max_examined: int, partial: bool, **kwargs):
        super().__init__(**kwargs)
        self.judge = judge
        self.max_examined = max_examined
        self.partial = partial
        self._judged_in_step: list[str] = []
        self._judged_since_batch: list[str] = []
        self._kept_in_step = 0

    # ---- what verl asks in every round of polling --------------------------------------------------------------

    def _terminal_eviction_reasons(
        self, global_steps: int, partition_id: str
    ) -> tuple[set[str], set[str], set[str], Counter]:
        """Stale, rejected and failed prompts. verl evicts their union and submits as many new ones.

        Raises:
            VerifierFailed: the verifier could not judge a rollout and ``on_failure`` is ``stop``.
        """
        if partition_id == "val":
            return super()._terminal_eviction_reasons(global_steps, partition_id)
        terminal = self.finished_keys[partition_id] | self.failure_keys[partition_id]
        new = sorted(terminal - self.judge.verdicts.keys())
        if new:
            self.judge.judge(new, partition_id, self.partitions[partition_id])
            self._judged_in_step.extend(new)
            self._judged_since_batch.extend(new)
        failed = {uid for uid in terminal if self.judge.verdicts[uid] == FAILED}
        rejected = {uid for uid in terminal if not self.judge.keeps(uid)} - failed
        # The third place after the sets is for verl's own filter: the rewards that its rejected prompts had in common.
        return self._stale_terminal_keys(global_steps, partition_id), rejected, failed, Counter()

    def _stale_terminal_keys(self, global_steps: int, partition_id: str) -> set[str]:
        """As verl's; a prompt some of whose rollouts failed can be kept here, so it can be stale as well."""
        finished = self.finished_keys[partition_id]
        self.finished_keys[partition_id] = finished | self.failure_keys[partition_id]
        try:
            return super()._stale_terminal_keys(global_steps, partition_id)
        finally:
            self.finished_keys[partition_id] = finished

    def _has_enough_samples(
        self, global_steps: int, partition_id: str, batch_size: int, sampleable_keys: set[str]
    ) -> bool:
        """As verl's; but the search ends when ``max_examined`` prompts did not contain enough.

        Raises:
            PromptsExhausted: and a smaller batch is not allowed, or would be empty.
        """
        if partition_id != "val" and len(sampleable_keys) < batch_size:
            examined = self._judged_since_batch
            if len(examined) < self.max_examined:
                return False
            message = self.judge.shortage(examined, len(sampleable_keys), batch_size, self.partial)
            if not sampleable_keys or not self.partial:
                raise PromptsExhausted(message)
            logger.warning("%s; training on the smaller batch", message)
            return True
        return super()._has_enough_samples(global_steps, partition_id, batch_size, sampleable_keys)

    def _select_prompt_uids(
        self, partition_id: str, sampleable_keys: set[str], batch_size: int
    ) -> tuple[list[str], dict[str, dict], dict[str, int]]:
        """The earliest submitted prompts. verl sorts by step, and leaves ties to the order of a set."""
        _, rollouts, steps = super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        return sorted(sampleable_keys)[:batch_size], rollouts, steps

    # ---- batches -----------------------------------------------------------------------------------------------

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict]:
        """The next batch of ``batch_size`` prompts that pass the filter, rows ordered by key, and its staleness.

        Raises:
            PromptsExhausted: ``max_examined`` prompts did not contain enough that pass.
        """
        batch, metrics = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
        if partition_id == "val":
            return batch, metrics
        batch.reorder(sorted(range(len(batch)), key=lambda row: batch.keys[row]))
        self._kept_in_step += len({transfer.group_uid(key) for key in batch.keys})
        self._judged_since_batch.clear()
        return batch, {**metrics, **staleness_metrics(batch.tags, global_steps)}

    def step_metrics(self) -> dict[str, float]:
        """What the filter did since the last call: once for a training step, however many batches it has."""
        self._sync_metadata_from_transfer_queue()
        in_system = self._prompts("train")
        finished = self.finished_keys["train"] | self.failure_keys["train"]
        metrics: dict[str, float] = {
            "prime/filter/kept": self._kept_in_step,
            "prime/filter/waiting": sum(uid not in self.judge.verdicts or self.judge.keeps(uid) for uid in finished),
            "prime/filter/in_flight": len(in_system) - len(finished),
        }
        if self._judged_in_step:
            metrics.update(self.judge.metrics(self._judged_in_step))
        self.judge.forget(self.judge.verdicts.keys() - in_system)
        self._judged_in_step.clear()
        self._kept_in_step = 0
        return metrics

    # ---- the trainer's questions -------------------------------------------------------------------------------

    def _prompts(self, partition_id: str) -> set[str]:
        return set(self.prompt_global_steps[partition_id])

    def count_prompts(self) -> int:
        """Training prompts in the system: pending, generating, or finished and not yet used or evicted."""
        self._sync_metadata_from_transfer_queue()
        return len(self._prompts("train"))

    def count_rollouts(self) -> int:
        """Finished training rollouts in the store."""
        self._sync_metadata_from_transfer_queue()
        return len(self.partitions["train"])

    def drop_orphans(self) -> int:
        """Forget rollouts whose prompt is gone; returns how many.

        verl saves its store before it clears the rollouts of the step that was trained on; after a resume nothing else
        would ever clear them.
        """
        self._sync_metadata_from_transfer_queue()
        prompts = self._prompts("train")
        orphans = [key for key in self.partitions["train"] if transfer.group_uid(key) not in prompts]
        if orphans:
            transfer.clear(orphans, "train")
        return len(orphans)
