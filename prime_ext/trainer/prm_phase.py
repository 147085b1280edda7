# SPDX-License-Identifier: Apache-2.0
"""The implicit PRM's part of a training step: reference, scores and update, in the order of ``prm.update_mode``.

================  =====================  ==========================  ==================================================
``update_mode``   before the update      update                      process rewards are the log-ratios of
================  =====================  ==========================  ==================================================
``none``          scoring pass           none                        the scoring pass
``after``         scoring pass           forward, backward           the scoring pass
``interleaved``   nothing                forward, backward           the training forward passes (single forward)
``reverse``       scoring pass           forward, backward           the training forward passes
``before``        only if needed         forward, backward           a scoring pass after the update (double forward)
================  =====================  ==========================  ==================================================

A step in which the PRM is not due for an update (``prm.update_freq``) goes as with ``none``.
"""

import logging
import math
from collections.abc import MutableMapping

import torch
from transfer_queue import KVBatchMeta
from verl.utils.debug import marked_timer

from prime_ext.prm.implicit_prm import ImplicitPRM
from prime_ext.prm.worker import LABEL, OFFSET, PRM_LOG_PROBS, REFERENCE_LOG_PROBS, ROW, WEIGHT
from prime_ext.trainer.prime_step import PrimeStep
from prime_ext.trainer.prm_rows import PRMRows
from prime_ext.trainer.scorer_rows import ScorerRows, ScorerRowsBuilder
from prime_ext.utils import transfer_queue as transfer

logger = logging.getLogger(__name__)

# What the update reads beside the rollout.
_UPDATE_FIELDS = (REFERENCE_LOG_PROBS, LABEL, WEIGHT, OFFSET, ROW)

# verl's names of the metrics of an update that are not the PRM's own.
_RENAMED = {"mfu": "perf/mfu/prm"}


class PRMPhase:
    """One training step of the PRM.

    Args:
        prm: the PRM.
        step: the tensors of this training step; the process rewards are put there.
        metrics: of the training step; the PRM's are added.
        timing: seconds by name, as verl's timers fill it.
        global_step: number of the training step, from 1.
        gated: whether the pair accuracy before the update is needed in every step.
        rewarded: whether the process rewards are read. Otherwise ``before`` does without the scoring pass behind it.
        rejected: rollouts of prompts that the filter dropped, on which the PRM is trained too; they are cleared.
        end_token: of the tokenizer.
        builder: writes the rows that the PRM reads in place of the rollouts; None where it reads those.
    """

    def __init__(
        self,
        prm: ImplicitPRM,
        step: PrimeStep,
        metrics: dict,
        timing: MutableMapping[str, float],
        global_step: int,
        gated: bool,
        rewarded: bool = True,
        rejected: KVBatchMeta | None = None,
        end_token: int = 0,
        builder: ScorerRowsBuilder | None = None,
    ):
        self.prm, self.step, self.metrics, self.timing = prm, step, metrics, timing
        self.global_step, self.gated, self.rewarded = global_step, gated, rewarded
        self.rejected, self.end_token = rejected, end_token
        self.builder = builder
        self.own: ScorerRows | None = None
        settings = prm.settings
        self.beta = settings.beta
        due = settings.update_mode != "none" and global_step % settings.update_freq == 0
        self.mode = settings.update_mode if due else "none"
        self.measures = settings.accuracy_freq > 0 and global_step % settings.accuracy_freq == 0

    def run(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Do it all. Returns the batch that knows the new fields."""
        self.rows = self._rows(batch)
        if self.own is not None and self.step.settings.distils:
            batch = self.own.put_prompts(batch)
        if not self.rows.valid_B.any():
            # Nothing that it could learn from.
            self.mode = "none"
        self.prm.follow_policy(self.global_step)
        batch = self._reference(batch)
        self._replay()
        {
            "none": self._score_only,
            "after": self._score_then_update,
            "interleaved": self._update_and_score,
            "reverse": self._update_and_score,
            "before": self._update_then_score,
        }[self.mode](batch)
        if self.prm.replay is not None and self.mode != "none":
            self.prm.replay.add(self.rows.packed())
        if self.measures and self.mode in ("after", "interleaved", "reverse"):
            self.step.measure_pairs(self._score(batch), self.metrics, when="after")
        self.rows.clear()
        self.metrics.update(pass_metrics(self.prm, batch))
        return batch

    def _rows(self, batch: KVBatchMeta) -> PRMRows:
        """What the PRM is trained on in this step."""
        rows, rejected = self._rows_of_step(batch), self.rejected
        if rejected is None:
            return rows
        if self.mode == "none":
            transfer.clear(rejected.keys, rejected.partition_id)
            return rows
        self.metrics["prm/judged_rollouts"] = len(rejected)
        labels = transfer.fetch_labels(rejected.keys, rejected.partition_id, self.step.settings.label_key)
        if self.builder is not None:
            rejected, labels = self._own_rejected(rejected, labels)
            if not labels:
                return rows
        return rows.plus(rejected, labels, self.prm.mini_batch_rows, self.end_token)

    def _rows_of_step(self, batch: KVBatchMeta) -> PRMRows:
        if self.builder is None:
            return PRMRows.of_step(self.step, batch)
        with marked_timer("prm_rows", self.timing):
            self.own = self.builder.build(batch, self.step.label_B, self.step.group_B)
        self.metrics.update(self.own.metrics)
        self.step.scored_BT = self.own.scored_BT
        if self.step.old_log_prob_BT is not None:
            self.step.compared_log_prob_BT = self.own.smoothed(self.step.old_log_prob_BT)
        return PRMRows.in_place_of_step(self.step, self.own)

    def _own_rejected(self, rejected: KVBatchMeta, labels: list[float]) -> tuple[KVBatchMeta, list[float]]:
        """The rows that the PRM reads in place of rejected rollouts, cleared; without what it cannot score."""
        assert self.builder is not None
        groups = torch.tensor(transfer.group_numbers(rejected.keys))
        rows = self.builder.build(rejected, torch.tensor(labels), groups)
        scored_B = rows.scored_BT.any(-1)
        places = scored_B.nonzero()[:, 0].tolist()
        without = [key for key, scored in zip(rows.batch.keys, scored_B.tolist(), strict=True) if not scored]
        transfer.clear([*rejected.keys, *without], rejected.partition_id)
        return transfer.select(rows.batch, places), [labels[place] for place in places]

    def _replay(self) -> None:
        """Add rollouts of earlier steps to what the PRM is trained on."""
        if self.prm.replay is None or self.mode == "none":
            return
        drawn = self.prm.replay.draw(int(self.rows.valid_B.sum()))
        self.metrics["prm/replayed_rollouts"] = len(drawn)
        if drawn:
            new = len(self.rows.batch)
            rows = self.prm.rows_with_replay(new, len(drawn))
            self.rows = self.rows.with_replayed(drawn, rows, new // self.prm.mini_batch_rows * rows, self.end_token)

    # ---- the modes -------------------------------------------------------------------------------------------

    def _score_only(self, batch: KVBatchMeta) -> None:
        self.step.set_scores(self._score(batch), self.beta, self.metrics, when="before")

    def _score_then_update(self, batch: KVBatchMeta) -> None:
        self.step.set_scores(self._score_for_update(batch), self.beta, self.metrics, when="before")
        self._update(self._planned())

    def _update_and_score(self, batch: KVBatchMeta) -> None:
        # The training forward passes of interleaved are the nearest to "before" that it has.
        when = "before"
        if self.mode == "reverse":
            self.step.measure_pairs(self._score_for_update(batch), self.metrics, when="before")
            when = "during"
        self._update_keeping_scores(self._planned())
        scores_BT, mini_batch_B = self._fetch_scores(batch), self._mini_batches(batch)
        self.step.set_scores(scores_BT, self.beta, self.metrics, when, mini_batch_B)

    def _update_then_score(self, batch: KVBatchMeta) -> None:
        if self.measures or self.prm.needs_scores:
            scores_BT, mini_batch_B = self._score_for_update(batch), None
            self.step.measure_pairs(scores_BT, self.metrics, when="before")
            self._update(self._planned())
        elif self.gated or not self.rewarded:
            # As interleaved measures it, from training forward passes, which cost nothing more.
            self._update_keeping_scores(self._planned())
            scores_BT, mini_batch_B = self._fetch_scores(batch), self._mini_batches(batch)
            self.step.measure_pairs(scores_BT, self.metrics, "before", mini_batch_B)
        else:
            self._update(self._planned())
        if not self.rewarded:
            self.step.set_scores(scores_BT, self.beta, self.metrics, "before", mini_batch_B)
            return
        self.step.set_scores(self._score(batch), self.beta, self.metrics, when="after")

    # ---- what they are made of -------------------------------------------------------------------------------

    def _reference(self, batch: KVBatchMeta) -> KVBatchMeta:
        with marked_timer("prm_reference", self.timing):
            if self.prm.refresh_reference(self.global_step):
                logger.info("step %d: the PRM's reference has newer weights", self.global_step)
            if self.own is not None and (name := self.prm.reference_of_policy) is not None:
                self.own.put(name, transfer.fetch_padded(batch, [name])[name].float())
            # The scores come from the passes of the update.
            as_update = self.mode in ("interleaved", "reverse")
            rows, log_prob_BT = self.prm.reference(self.rows.batch, as_update)
            self.rows.batch = transfer.with_fields(rows, (*self.rows.inputs, REFERENCE_LOG_PROBS))
            if self.own is None:
                batch = transfer.with_field(batch, REFERENCE_LOG_PROBS)
            if self.rows.added:
                log_prob_BT = self._fetch(batch, REFERENCE_LOG_PROBS)
            self.step.reference_log_prob_BT = log_prob_BT
        return batch

    def _score(self, batch: KVBatchMeta) -> torch.Tensor:
        with marked_timer("prm_score", self.timing):
            rows = batch if self.own is None else self.own.batch
            self.prm.score(transfer.with_fields(rows, self.rows.inputs), batch)
        return self._fetch_scores(batch)

    def _score_for_update(self, batch: KVBatchMeta) -> torch.Tensor:
        """Score what the update needs scores of. Returns the scores of the batch."""
        if not (self.prm.needs_scores and self.rows.added):
            return self._score(batch)
        with marked_timer("prm_score", self.timing):
            self.prm.score(self.rows.batch)
        return self._fetch_scores(batch)

    def _fetch_scores(self, batch: KVBatchMeta) -> torch.Tensor:
        return self._fetch(batch, PRM_LOG_PROBS)

    def _fetch(self, batch: KVBatchMeta, name: str) -> torch.Tensor:
        """What the PRM says of the tokens of the batch."""
        return transfer.fetch_padded(batch, [name])[name] if self.own is None else self.own.fetch(name)

    def _mini_batches(self, batch: KVBatchMeta) -> torch.Tensor:
        """In which mini-batch of the update each row of the batch was."""
        rows = self.rows
        return self.prm.mini_batches(rows.batch, rows.replayed_B, rows.mini_batch_rows)[: len(batch)]

    def _planned(self) -> KVBatchMeta:
        rows = self.rows
        score_B = rows.score_sum() if self.prm.needs_scores else None
        of_rows = (rows.label_B, rows.group_B, rows.valid_B, score_B, rows.replayed_B)
        planned = self.prm.put_rows(rows.batch, *of_rows, rows.mini_batch_rows)
        return transfer.with_fields(planned, (*rows.inputs, *_UPDATE_FIELDS))

    def _update(self, planned: KVBatchMeta) -> None:
        with marked_timer("prm_update", self.timing):
            self._log_update(self.prm.update(planned, self.rows.mini_batch_rows))

    def _update_keeping_scores(self, planned: KVBatchMeta) -> None:
        """Train, and leave the log-probabilities of the training forward passes in the queue."""
        with marked_timer("prm_update", self.timing):
            self._log_update(self.prm.update_and_score(planned, self.rows.mini_batch_rows))

    def _log_update(self, update: dict[str, float]) -> None:
        if not math.isfinite(update["loss"]):
            logger.warning("the PRM's loss is %s; lower prm.optim.lr or check the rewards", update["loss"])
        for name, value in update.items():
            self.metrics[_RENAMED.get(name, name if name.startswith("perf/") else f"prm/{name}")] = value


def pass_metrics(prm: ImplicitPRM, batch: KVBatchMeta) -> dict[str, float]:
    """Passes over the sequences of the step, as the hooks on the models counted them: 1.0 is one pass over all."""
    tokens = sum(tag["seq_len"] for tag in batch.tags)
    return {f"prm/passes/{name}": count / tokens for name, count in prm.take_pass_counts().items()}
