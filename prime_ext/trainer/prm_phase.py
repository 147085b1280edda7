# SPDX-License-Identifier: Apache-2.0
"""The implicit PRM's part of a training step: reference, scores and update, in the order of ``prm.update_mode``.

docs/explanation/implicit_prm.md has the orders.
"""

import logging
import math
from collections.abc import Mapping, Sequence

import torch
from transfer_queue import KVBatchMeta
from verl.utils.debug import marked_timer

from prime_ext.algorithms.implicit_reward import log_ratio
from prime_ext.prm.implicit_prm import ImplicitPRM
from prime_ext.prm.worker import (
    INPUT_FIELDS,
    LABEL,
    OFFSET,
    PRM_LOG_PROBS,
    REFERENCE_LOG_PROBS,
    ROW,
    TEXT_FIELDS,
    WEIGHT,
)
from prime_ext.trainer.prime_step import PrimeStep
from prime_ext.utils import transfer_queue as transfer

logger = logging.getLogger(__name__)

# What the update reads beside the rollout.
_UPDATE_FIELDS = (REFERENCE_LOG_PROBS, LABEL, WEIGHT, OFFSET, ROW)
# Fields of a rollout that are kept for later steps; the tokens are those of prompt and response.
_KEPT = ("prompts", "responses", "position_ids", "response_mask")


class PRMPhase:
    """One training step of the PRM, whose process rewards ``step`` receives.

    Attributes:
        rows: those of the update: of the step's batch, in its order, then replayed ones and padding; with ``label_B``,
            ``group_B`` (padding has numbers of its own) and ``valid_B`` (False for padding).
        added: keys of those that are not in the batch; they are cleared in the end.
        replayed_B: True for rows of earlier steps; None without any.
        mini_batch_rows: rows of a mini-batch with them; None without any.
    """

    def __init__(self, prm: ImplicitPRM, step: PrimeStep, end_token: int = 0):
        self.prm, self.step, self.end_token = prm, step, end_token
        self.label_B, self.group_B, self.valid_B = step.label_B, step.group_B, step.valid_B
        self.added: list[str] = []
        self.replayed_B: torch.Tensor | None = None
        self.mini_batch_rows: int | None = None
        step.process_noise = prm.reward_noise
        settings, prime = prm.settings, step.settings
        self.mode = settings.update_mode
        self.measures = settings.accuracy_freq > 0 and step.number % settings.accuracy_freq == 0
        # Whether the process rewards are read. Otherwise "before" does without the scoring pass after it.
        self.rewarded = prime.rewards_tokens or not prime.distils

    def run(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Run the PRM phase and return the batch with its new fields."""
        self.rows = transfer.with_fields(batch, INPUT_FIELDS)
        if not self.valid_B.any():
            # Nothing that it could learn from.
            self.mode = "none"
        batch = self._reference(batch)
        replay = self.prm.replay if self.mode != "none" else None
        if replay is not None:
            self._add_replayed(replay.draw(int(self.valid_B.sum())))
        self._score_and_update(batch)
        if replay is not None:
            replay.add(self._new_rollouts())
        if self.measures and self.mode in ("after", "interleaved"):
            self.step.measure_scores(self._score(batch), "after")
        if self.added:
            transfer.clear(self.added, batch.partition_id)
        # Passes over the sequences of the step, as the hooks on the models counted them: 1.0 is one pass over all.
        tokens = sum(tag["seq_len"] for tag in batch.tags)
        for name, count in self.prm.take_pass_counts().items():
            self.step.metrics[f"prm/passes/{name}"] = count / tokens
        return batch

    def _score_and_update(self, batch: KVBatchMeta) -> None:
        step, mode = self.step, self.mode
        scores_first = mode in ("none", "after")
        if mode == "before":
            scores_first = self.measures or self.prm.needs_scores
        # Scores of the training forward passes cost nothing more.
        of_training = mode == "interleaved"
        if mode == "before" and not scores_first:
            of_training = step.settings.gates or not self.rewarded
        if scores_first:
            scores_BT = self._score(batch, for_update=mode != "none")
            step.measure_scores(scores_BT, "before")
        if mode != "none":
            self._update(of_training)
        if of_training:
            scores_BT = self._scores(batch)
            plan = self.prm.plan(self.rows, self.replayed_B, self.mini_batch_rows)
            # Those of interleaved are the nearest to "before" that it has.
            step.measure_scores(scores_BT, "before", plan.mini_batch_B[: len(batch)])
        if mode == "before" and self.rewarded:
            scores_BT = self._score(batch)
            step.measure_scores(scores_BT, "after")
        step.set_scores(scores_BT, self.prm.settings.beta)

    # ---- what the PRM is trained on ----------------------------------------------------------------------------

    @property
    def _inputs(self) -> tuple[str, ...]:
        """Fields of a rollout that all rows have; those of earlier steps are without images."""
        return INPUT_FIELDS if self.replayed_B is None else TEXT_FIELDS

    def _add_replayed(self, drawn: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Add rows of earlier steps, with their reference's log-probabilities, and padding to equal mini-batches."""
        self.step.metrics["prm/replayed_rollouts"] = len(drawn)
        if not drawn:
            return
        new = len(self.rows)
        self.mini_batch_rows = self.prm.rows_with_replay(new, len(drawn))
        fields = {name: [row[name] for row in drawn] for name in (*_KEPT, "input_ids")}
        fields["loss_mask"] = fields["response_mask"]
        fields[REFERENCE_LOG_PROBS] = [row["reference"] for row in drawn]
        keys = [f"replay{place:06d}_0_0" for place in range(len(drawn))]
        more = transfer.put_rollouts(keys, self.rows.partition_id, fields)
        multiple = new // self.prm.mini_batch_rows * self.mini_batch_rows
        self.rows = transfer.padded(transfer.joined(self.rows, more, TEXT_FIELDS), multiple, self.end_token)
        self.added = self.rows.keys[new:]
        filled = len(self.added) - len(drawn)
        if filled:
            # verl copies it from some rollout, of another length.
            nothing = torch.nested.as_nested_tensor([torch.zeros(1)] * filled, layout=torch.jagged)
            padding = transfer.select(self.rows, range(new + len(drawn), len(self.rows)))
            transfer.put_rows(padding, {REFERENCE_LOG_PROBS: nothing})
        again_N = torch.arange(len(self.added)) < len(drawn)
        labels = torch.tensor([float(row["label"]) for row in drawn])
        # Every one is a prompt of its own.
        groups = int(self.group_B.max()) + 1 + torch.arange(len(self.added))
        self.label_B = torch.cat((self.label_B, labels, torch.zeros(filled)))
        self.group_B = torch.cat((self.group_B, groups))
        self.replayed_B = torch.cat((torch.zeros(new, dtype=torch.bool), again_N))
        self.valid_B = torch.cat((self.valid_B, again_N))

    def _new_rollouts(self) -> dict[str, Sequence[torch.Tensor]]:
        """Return the fields of the new rollouts among the rows that are kept for later steps."""
        new_B = self.valid_B if self.replayed_B is None else self.valid_B & ~self.replayed_B
        new = transfer.select(self.rows, new_B.nonzero()[:, 0].tolist())
        transfer.refuse_images(new, "prm.replay; set its batches=0")
        fields = transfer.fetch_rows(new, [*_KEPT, REFERENCE_LOG_PROBS])
        return {**fields, "reference": fields[REFERENCE_LOG_PROBS], "label": self.label_B[new_B].unbind()}

    # ---- passes ------------------------------------------------------------------------------------------------

    def _reference(self, batch: KVBatchMeta) -> KVBatchMeta:
        with marked_timer("prm_reference", self.step.timing):
            # The scores come from the passes of the update.
            as_update = self.mode == "interleaved"
            rows, log_prob_BT = self.prm.reference(self.rows, as_update)
            self.rows = transfer.with_fields(rows, (*self._inputs, REFERENCE_LOG_PROBS))
            batch = transfer.with_field(batch, REFERENCE_LOG_PROBS)
            self.step.reference_log_prob_BT = log_prob_BT
        return batch

    def _score(self, batch: KVBatchMeta, for_update: bool = False) -> torch.Tensor:
        """The PRM's log-probabilities of the batch; all rows of the update are scored if it needs that."""
        with marked_timer("prm_score", self.step.timing):
            if for_update and self.prm.needs_scores and self.added:
                self.prm.score(self.rows)
            else:
                self.prm.score(transfer.with_fields(batch, self._inputs))
        return self._scores(batch)

    def _scores(self, batch: KVBatchMeta) -> torch.Tensor:
        return transfer.fetch_padded(batch, [PRM_LOG_PROBS])[PRM_LOG_PROBS]

    def _update(self, keeps_scores: bool) -> None:
        """Train; if asked, leave the log-probabilities of the training forward passes in the queue."""
        score_B = None
        if self.prm.needs_scores:
            # Summed log-ratio of each row, from the last pass that scored it.
            data = transfer.fetch_padded(self.rows, [PRM_LOG_PROBS, REFERENCE_LOG_PROBS, "response_mask"])
            mask_BT = data["response_mask"].float() * self.valid_B[:, None]
            score_B = log_ratio(data[PRM_LOG_PROBS], data[REFERENCE_LOG_PROBS], mask_BT).sum(-1)
        of_rows = (self.label_B, self.group_B, self.valid_B, score_B, self.replayed_B)
        planned = self.prm.put_rows(self.rows, *of_rows, self.mini_batch_rows)
        planned = transfer.with_fields(planned, (*self._inputs, *_UPDATE_FIELDS))
        with marked_timer("prm_update", self.step.timing):
            values = self.prm.update(planned, self.mini_batch_rows, score=keeps_scores)
        if not math.isfinite(values["loss"]):
            logger.warning("the PRM's loss is %s; lower prm.optim.lr or check the rewards", values["loss"])
        for name, value in values.items():
            # verl's own metrics stay under its names.
            known = "perf/mfu/prm" if name == "mfu" else name if name.startswith("perf/") else f"prm/{name}"
            self.step.metrics[known] = value
