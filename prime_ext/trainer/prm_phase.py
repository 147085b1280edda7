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
from prime_ext.prm.replay import pack
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
    """One training step of the PRM.

    Args:
        prm: the PRM.
        step: is told the process rewards.
        end_token: of the tokenizer.

    Attributes:
        rows: those of the update, padding included: of the step's batch, in its order, then others that only the PRM
            sees; with ``label_B``, ``group_B`` (padding has numbers of its own) and ``valid_B`` (False for padding).
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
        # Whether the process rewards are read. Otherwise "before" does without the scoring pass behind it.
        self.rewarded = prime.rewards_tokens or not prime.distils

    def run(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Do it all. Returns the batch that knows the new fields."""
        # Of the fields of a rollout workers need only those of a rollout.
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
            replay.add(self._packed())
        if self.measures and self.mode in ("after", "interleaved"):
            self.step.measure_scores(self._score(batch), "after")
        if self.added:
            transfer.clear(self.added, batch.partition_id)
        self.step.metrics.update(pass_metrics(self.prm, batch))
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
            scores_BT = self._fetch(batch, PRM_LOG_PROBS)
            mini_batch_B = self.prm.mini_batches(self.rows, self.replayed_B, self.mini_batch_rows)[: len(batch)]
            # Those of interleaved are the nearest to "before" that it has.
            step.measure_scores(scores_BT, "before", mini_batch_B)
        if mode == "before" and self.rewarded:
            scores_BT = self._score(batch)
            step.measure_scores(scores_BT, "after")
        step.set_scores(scores_BT, self.prm.settings.beta)

    # ---- what the PRM is trained on ----------------------------------------------------------------------------

    @property
    def _inputs(self) -> tuple[str, ...]:
        """Fields of a rollout that all rows have; those of earlier steps are without images."""
        return INPUT_FIELDS if self.replayed_B is None else TEXT_FIELDS

    def _add(self, more: KVBatchMeta, labels: Sequence[float], multiple: int) -> None:
        """Rows of other prompts, with these outcomes, and padding to a multiple of so many.

        They are in the same partition of the store, and need none but the fields of a rollout.
        """
        joined = transfer.joined(self.rows, more, self._inputs)
        padded = transfer.padded(joined, multiple, self.end_token)
        filled = len(padded) - len(joined)
        first = int(self.group_B.max()) + 1
        groups = [first + number for number in transfer.group_numbers(more.keys)]
        padding = [first + len(set(groups)) + place for place in range(filled)]
        self.label_B = torch.cat((self.label_B, torch.tensor(labels), torch.zeros(filled)))
        self.group_B = torch.cat((self.group_B, torch.tensor([*groups, *padding])))
        self.valid_B = torch.cat((self.valid_B, torch.arange(len(more) + filled) < len(more)))
        self.added += padded.keys[len(self.rows) :]
        self.rows = padded

    def _add_replayed(self, drawn: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Rows of earlier steps, with their reference's log-probabilities."""
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
        self._add(more, [float(row["label"]) for row in drawn], multiple)
        filled = transfer.select(self.rows, range(new + len(drawn), len(self.rows)))
        if filled.keys:
            # verl copies it from some rollout, of another length.
            nothing = torch.nested.as_nested_tensor([torch.zeros(1)] * len(filled), layout=torch.jagged)
            transfer.put_rows(filled, {REFERENCE_LOG_PROBS: nothing})
        place_B = torch.arange(len(self.rows)) - new
        self.replayed_B = (place_B >= 0) & (place_B < len(drawn))

    def _packed(self) -> dict[str, torch.Tensor]:
        """The new rollouts among the rows, as they are kept for later steps."""
        new_B = self.valid_B if self.replayed_B is None else self.valid_B & ~self.replayed_B
        new = transfer.select(self.rows, new_B.nonzero()[:, 0].tolist())
        transfer.refuse_images(new, "prm.replay; set its batches=0")
        fields = transfer.fetch_rows(new, [*_KEPT, REFERENCE_LOG_PROBS])
        fields["reference"] = fields.pop(REFERENCE_LOG_PROBS)
        return pack(fields, self.label_B[new_B])

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
        return self._fetch(batch, PRM_LOG_PROBS)

    def _fetch(self, batch: KVBatchMeta, name: str) -> torch.Tensor:
        """What the PRM says of the tokens of the batch."""
        return transfer.fetch_padded(batch, [name])[name]

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
        update = self.prm.update_and_score if keeps_scores else self.prm.update
        with marked_timer("prm_update", self.step.timing):
            said = update(planned, self.mini_batch_rows)
        if not math.isfinite(said["loss"]):
            logger.warning("the PRM's loss is %s; lower prm.optim.lr or check the rewards", said["loss"])
        for name, value in said.items():
            # verl's own metrics stay under its names.
            known = "perf/mfu/prm" if name == "mfu" else name if name.startswith("perf/") else f"prm/{name}"
            self.step.metrics[known] = value


def pass_metrics(prm: ImplicitPRM, batch: KVBatchMeta) -> dict[str, float]:
    """Passes over the sequences of the step, as the hooks on the models counted them: 1.0 is one pass over all."""
    tokens = sum(tag["seq_len"] for tag in batch.tags)
    return {f"prm/passes/{name}": count / tokens for name, count in prm.take_pass_counts().items()}
