# SPDX-License-Identifier: Apache-2.0
"""The implicit PRM as a scorer: its passes, its orders of score and update, and its rewards.

docs/explanation/implicit_prm.md explains the orders.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from prime_ext.algorithms.distillation import policy_relative_rewards
from prime_ext.algorithms.implicit_reward import log_ratio, process_rewards
from prime_ext.algorithms.prm_accuracy import PairCount, absolute_accuracy
from prime_ext.algorithms.prm_losses import PRM_LOSSES
from prime_ext.methods.measures import measure_pairs, measure_sums
from prime_ext.methods.prm_settings import STEPS_PER_MEASUREMENT, PRMSettings, TrainedPRMSettings
from prime_ext.methods.rollouts import Rollouts, ScoredRollouts
from prime_ext.methods.settings import PrimeSettings
from prime_ext.methods.store import RolloutStore, replay_key
from prime_ext.prm import fields
from prime_ext.prm.mini_batches import MiniBatchPlan, add_replayed_rows, plan_mini_batches
from prime_ext.prm.replay import PRMReplay
from prime_ext.utils.timing import add_seconds

logger = logging.getLogger(__name__)

# Folder of replayed rollouts, in the PRM's folder of a checkpoint and in the folder of the run.
REPLAY_FOLDER = "prm_replay"
# Fields of a rollout that are kept for later steps, in addition to the reference and the label.
_KEPT = ("prompts", "responses", "position_ids", "response_mask")

# Standard deviation of a token's log-ratio for a PRM with its reference's weights, by the dtype of
# their passes.
NOISE_PER_TOKEN = {torch.float32: 1e-6, torch.bfloat16: 0.02, torch.float16: 0.0025}


@dataclass(frozen=True)
class TokenLogProbs:
    """Log-probabilities of the responses' tokens by PRM and reference, ``(B, T)`` each.

    ``mini_batch_B`` is the mini-batch of each row if training forward passes computed them: the PRM
    changes from one mini-batch to the next.
    """

    log_prob_BT: torch.Tensor
    reference_BT: torch.Tensor
    mini_batch_B: torch.Tensor | None = None

    def log_ratio(self, mask_BT: torch.Tensor) -> torch.Tensor:
        """Return q_t, ``(B, T)``."""
        return log_ratio(self.log_prob_BT, self.reference_BT, mask_BT)


@dataclass(frozen=True)
class PRMBatch:
    """Rows that train the PRM: those of ``rollouts`` in order, then replayed ones and padding.

    ``label_B``, ``group_B`` (other numbers for padding), ``valid_B`` (False for padding) and
    ``replayed_B`` cover all rows. A mini-batch has ``mini_batch_rows`` rows, replayed ones
    included. Passes add their time to ``seconds``.
    """

    rollouts: Rollouts
    rows: RolloutStore
    label_B: torch.Tensor
    group_B: torch.Tensor
    valid_B: torch.Tensor
    replayed_B: torch.Tensor
    mini_batch_rows: int
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the input fields that all rows have; replayed rollouts have no images."""
        return fields.TEXT_FIELDS if self.replayed_B.any() else fields.INPUT_FIELDS


# ---- orders of score and update (prm.update_mode) ------------------------------------------------


@dataclass(frozen=True)
class ScoringPasses:
    """Log-probabilities for rewards, before and after the PRM's update, and its metrics."""

    rewards: TokenLogProbs
    before: TokenLogProbs | None = None
    after: TokenLogProbs | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def score_then_update(prm: "TrainedPRM", batch: PRMBatch, measures: bool) -> ScoringPasses:
    """Score, then update (``after``): rewards come from a PRM that has not seen these outcomes."""
    before = prm.score(batch)
    metrics = prm.update(batch, before)
    return ScoringPasses(before, before, prm.score(batch) if measures else None, metrics)


def score_in_update(prm: "TrainedPRM", batch: PRMBatch, measures: bool) -> ScoringPasses:
    """Score in the training forward passes (``interleaved``, "single forward" in PRIME's code)."""
    metrics = prm.update(batch, keeps_scores=True)
    # There are no scores before the update; these are the closest.
    during = prm.fetch_training_scores(batch)
    return ScoringPasses(during, during, prm.score(batch) if measures else None, metrics)


def update_then_score(prm: "TrainedPRM", batch: PRMBatch, measures: bool) -> ScoringPasses:
    """Update, then score (``before``, PRIME's double forward): the PRM has seen these outcomes."""
    distils = prm.prime.distils
    needed = measures or PRM_LOSSES[prm.settings.loss].needs_scores
    before = prm.score(batch) if needed else None
    # The training forward passes give scores at no extra cost.
    keeps_scores = before is None and (prm.prime.gate is not None or distils)
    metrics = prm.update(batch, before, keeps_scores)
    if keeps_scores:
        before = prm.fetch_training_scores(batch)
    if before is not None and distils:
        # No token rewards are needed.
        return ScoringPasses(before, before, None, metrics)
    after = prm.score(batch)
    return ScoringPasses(after, before, after, metrics)


ORDERS: dict[str, Callable[["TrainedPRM", PRMBatch, bool], ScoringPasses]] = {
    "after": score_then_update,
    "interleaved": score_in_update,
    "before": update_then_score,
}


# ---- scorers -------------------------------------------------------------------------------------


class PRMWorkers(Protocol):
    """Workers that hold a model, on all ranks; every call waits for all of them.

    ``request`` comes from :meth:`prime_ext.methods.store.RolloutStore.build_request`.
    :class:`prime_ext.verl_adapter.side_models.WorkerGroup` implements it.
    """

    @property
    def data_parallel_size(self) -> int:
        """Return the number of ranks that share the rows; every pass needs a multiple of it."""

    def share_rows(self, lengths: Sequence[int], ranks: int) -> list[list[int]]:
        """Divide rows of these lengths over ranks: equal numbers of rows, similar work."""

    def score(self, request: Any) -> None:
        """Write log-probabilities of the responses to the field that the request names."""

    def update(self, request: Any) -> dict[str, float]:
        """Train on the mini-batches in order, and return the metrics."""

    def update_and_score(self, request: Any) -> dict[str, float]:
        """Train, and write the log-probabilities of the training passes to the store."""

    def start_bias(self, mean_outcome: float) -> None:
        """Set the trained bias to its starting value, unless it has a value."""

    def bias_value(self) -> float:
        """Return the trained bias."""


@dataclass
class FrozenPRM:
    """A model that is never trained, and its reference: an offline PRM or a teacher.

    Attributes:
        settings: the validated section ``prm``.
        prime: the validated section ``prime``.
        mini_batch_rows: rows of a mini-batch over all ranks.
        temperature: divisor of the logits on both sides of the log-ratio.
        end_token: token of padding.
        folder: folder of the run.
        dtype: dtype of the forward passes.
        workers: set once verl has started.
        reference_workers: set as well, if the reference is another model.
    """

    settings: PRMSettings
    prime: PrimeSettings
    mini_batch_rows: int
    temperature: float = 1.0
    end_token: int = 0
    folder: Path = Path()
    dtype: torch.dtype = torch.bfloat16
    workers: PRMWorkers = field(init=False)
    reference_workers: PRMWorkers = field(init=False)

    @property
    def reference_field(self) -> str:
        """Return the name of the field with the reference's log-probabilities."""
        is_policy = self.settings.reference == "policy"
        return "old_log_probs" if is_policy else fields.REFERENCE_LOG_PROBS

    @property
    def noise(self) -> float:
        """Return the standard deviation of the rounding noise of a reward."""
        noise = NOISE_PER_TOKEN[self.dtype]
        if self.prime.distils or self.prime.needs.old_log_probs:
            return noise
        return self.settings.beta * noise

    def score_and_update(self, rollouts: Rollouts) -> ScoredRollouts:
        """Compute the reference, then the scores."""
        batch = self.build_batch(rollouts)
        self.write_reference(batch)
        scores = self.score(batch)
        return self.compute_rewards(batch, ScoringPasses(scores, before=scores))

    def build_batch(self, rollouts: Rollouts) -> PRMBatch:
        """Return the rollouts of a step as a batch without replayed rows."""
        return PRMBatch(
            rollouts,
            rollouts.store,
            rollouts.label_B,
            rollouts.group_B,
            rollouts.valid_B,
            replayed_B=torch.zeros_like(rollouts.valid_B),
            mini_batch_rows=self.mini_batch_rows,
        )

    def write_reference(self, batch: PRMBatch, as_update: bool = False) -> None:
        """Put the reference's log-probabilities into the store.

        This takes a forward pass, except with ``prm.reference=policy``. With ``as_update`` rows are
        packed as in the update. If its forward passes score, q is then exactly 0 for a PRM that
        equals its reference.
        """
        kind = self.settings.reference
        rows = batch.rows
        with add_seconds("prm_reference", batch.seconds):
            if kind != "policy":
                options: dict[str, Any] = {} if kind == "frozen" else {"no_lora_adapter": True}
                if as_update:
                    options[fields.MINI_BATCH_ROWS] = batch.mini_batch_rows
                    rows = rows.select(self.plan(batch).order)
                workers = self.reference_workers if kind == "frozen" else self.workers
                self._score(workers, rows, batch, fields.REFERENCE_LOG_PROBS, **options)

    def score(self, batch: PRMBatch) -> TokenLogProbs:
        """Score the rollouts of the step in a separate forward pass."""
        with add_seconds("prm_score", batch.seconds):
            self._score(self.workers, batch.rollouts.store, batch, fields.PRM_LOG_PROBS)
        return self._fetch(batch)

    def _score(
        self,
        workers: PRMWorkers,
        rows: RolloutStore,
        batch: PRMBatch,
        name: str,
        **options: Any,
    ) -> None:
        options |= {fields.OUTPUT_FIELD: name, "calculate_entropy": False, "compute_loss": False}
        workers.score(rows.build_request(batch.inputs, temperature=self.temperature, **options))

    def _fetch(self, batch: PRMBatch, mini_batch_B: torch.Tensor | None = None) -> TokenLogProbs:
        data = batch.rollouts.store.fetch(fields.PRM_LOG_PROBS, self.reference_field)
        return TokenLogProbs(data[fields.PRM_LOG_PROBS], data[self.reference_field], mini_batch_B)

    def plan(self, batch: PRMBatch) -> MiniBatchPlan:
        """Plan the mini-batches of the rows."""
        rows = batch.rows
        return plan_mini_batches(
            rows.keys,
            rows.padding,
            rows.lengths,
            batch.mini_batch_rows,
            self.workers.data_parallel_size,
            self.workers.share_rows,
            batch.replayed_B.tolist(),
        )

    def compute_rewards(self, batch: PRMBatch, scoring: ScoringPasses) -> ScoredRollouts:
        """Turn log-probabilities into rewards, and measure how well they order the rollouts."""
        rollouts = batch.rollouts
        log_prob_BT = scoring.rewards.log_prob_BT
        mask_BT = batch.rollouts.mask_BT
        reward_BT = process_rewards(scoring.rewards.log_ratio(mask_BT), self.settings.beta)
        pairs, metrics_before = measure(rollouts, scoring.before, "before")
        _, metrics_after = measure(rollouts, scoring.after, "after")
        metrics = {
            **scoring.metrics,
            **metrics_before,
            **metrics_after,
            **measure_sums(rollouts, reward_BT.sum(-1)),
        }
        if rollouts.old_log_prob_BT is not None:
            reward_BT = policy_relative_rewards(log_prob_BT, rollouts.old_log_prob_BT, mask_BT)
        return ScoredRollouts(
            reward_BT,
            noise=self.noise,
            pairs=pairs,
            steps=rollouts.steps,
            metrics=metrics,
            seconds=batch.seconds,
        )


class TrainedPRM(FrozenPRM):
    """The PRM that is trained with the policy; rollouts of earlier steps may join its updates."""

    settings: TrainedPRMSettings

    @cached_property
    def replay(self) -> PRMReplay | None:
        """Store of rollouts of earlier updates; None without replay."""
        batches = self.settings.replay
        return PRMReplay(batches, self.folder / REPLAY_FOLDER) if batches else None

    def score_and_update(self, rollouts: Rollouts) -> ScoredRollouts:
        """Compute the reference, then score and update in the order of ``prm.update_mode``."""
        if not rollouts.valid_B.any():
            # There is nothing to learn from.
            return super().score_and_update(rollouts)
        settings = self.settings
        alone = self.build_batch(rollouts)
        measures = rollouts.number % STEPS_PER_MEASUREMENT == 0
        self.write_reference(alone, as_update=settings.update_mode == "interleaved")
        with self._add_replay(alone) as batch:
            scored = self.compute_rewards(
                batch, ORDERS[settings.update_mode](self, batch, measures)
            )
        if self.replay is None:
            return scored
        new = rollouts.store.select(rollouts.valid_B.nonzero()[:, 0].tolist())
        new.refuse_images("prm.replay; set it to 0")
        kept = new.fetch_rows(*_KEPT, fields.REFERENCE_LOG_PROBS)
        label_B = rollouts.label_B[rollouts.valid_B]
        self.replay.add(
            {**kept, "reference": kept[fields.REFERENCE_LOG_PROBS], "label": label_B.unbind()}
        )
        return replace(
            scored, metrics={**scored.metrics, "prm/replayed_rollouts": int(batch.replayed_B.sum())}
        )

    def update(
        self, batch: PRMBatch, before: TokenLogProbs | None = None, keeps_scores: bool = False
    ) -> dict[str, float]:
        """Train on the mini-batches, and return the metrics of the update.

        ``before`` are earlier scores, for losses that need them. With ``keeps_scores`` the
        log-probabilities of the training forward passes are left in the store.
        """
        plan = self.plan(batch)
        workers = self.workers
        loss = PRM_LOSSES[self.settings.loss]
        score_B = None if before is None else before.log_ratio(batch.rollouts.mask_BT).sum(-1)
        rows = loss.prepare(batch.label_B.float(), batch.group_B, batch.valid_B, score_B)
        row_fields = {fields.LABEL: rows.target_B, fields.WEIGHT: rows.weight_B * plan.weight_B}
        row_fields |= {fields.OFFSET: rows.offset_B, fields.ROW: torch.arange(len(batch.rows))}
        batch.rows.write(**row_fields)
        if self.settings.bias_lr is not None:
            workers.start_bias(float(batch.label_B[batch.valid_B].mean()))
        read = (*batch.inputs, self.reference_field, *row_fields)
        options = update_options(batch.mini_batch_rows, self.settings.epochs, self.temperature)
        request = batch.rows.select(plan.order).build_request(read, **options)
        with add_seconds("prm_update", batch.seconds):
            train = workers.update_and_score if keeps_scores else workers.update
            values = train(request)
        if self.settings.bias_lr is not None:
            values["bias"] = workers.bias_value()
        if not math.isfinite(values["loss"]):
            logger.warning(
                "the PRM's loss is %s; lower prm.optim.lr or check the rewards", values["loss"]
            )
        # verl's own metrics stay under its names.
        mfu = {"perf/mfu/prm": values.pop("mfu")} if "mfu" in values else {}
        return mfu | {
            name if name.startswith("perf/") else f"prm/{name}": value
            for name, value in values.items()
        }

    def fetch_training_scores(self, batch: PRMBatch) -> TokenLogProbs:
        """Return the scores of the training forward passes, which :meth:`update` has kept."""
        return self._fetch(batch, self.plan(batch).mini_batch_B[: len(batch.rollouts.store)])

    @contextmanager
    def _add_replay(self, alone: PRMBatch) -> Iterator[PRMBatch]:
        """Add replayed rollouts, their reference log-probabilities, and padding.

        The padding makes the mini-batches equal.
        """
        drawn = self.replay.draw(int(alone.valid_B.sum())) if self.replay is not None else []
        if not drawn:
            yield alone
            return
        new = len(alone.rows)
        n_batches = len(alone.rows) // self.mini_batch_rows
        rows_with = add_replayed_rows(
            self.mini_batch_rows, n_batches, len(drawn), self.workers.data_parallel_size
        )
        data = {name: [row[name] for row in drawn] for name in (*_KEPT, "input_ids")}
        data |= {
            "loss_mask": data["response_mask"],
            fields.REFERENCE_LOG_PROBS: [row["reference"] for row in drawn],
        }
        keys = [replay_key(number) for number in range(len(drawn))]
        with alone.rows.add_rows(keys, data, n_batches * rows_with, self.end_token) as rows:
            added = len(rows) - new
            if filled := added - len(drawn):
                # verl's padding has a copy of a rollout's values, which have another length.
                padding = rows.select(range(len(rows) - filled, len(rows)))
                padding.write(**{fields.REFERENCE_LOG_PROBS: torch.zeros(filled, 1)})
            is_replayed_N = torch.arange(added) < len(drawn)
            labels = torch.tensor([float(row["label"]) for row in drawn])
            yield replace(
                alone,
                rows=rows,
                label_B=torch.cat((alone.label_B, labels, torch.zeros(filled))),
                # Every added row is a group by itself.
                group_B=torch.cat(
                    (alone.group_B, int(alone.group_B.max()) + 1 + torch.arange(added))
                ),
                valid_B=torch.cat((alone.valid_B, is_replayed_N)),
                replayed_B=torch.cat((alone.replayed_B, is_replayed_N)),
                mini_batch_rows=rows_with,
            )


def update_options(rows: int, epochs: int, temperature: float) -> dict[str, Any]:
    """Return the options of verl's worker for an update with mini-batches of ``rows``."""
    sizes = {
        "global_batch_size": rows,
        "mini_batch_size": rows,
        "epochs": epochs,
        "temperature": temperature,
    }
    return {**sizes, "seed": 0, "dataloader_kwargs": {"shuffle": False}, "calculate_entropy": False}


def measure(
    rollouts: Rollouts, scores: TokenLogProbs | None, when: str
) -> tuple[PairCount, dict[str, float]]:
    """Measure how well the PRM orders the batch ``before`` or ``after`` the update.

    Without scores there are no pairs and no metrics. Pairs over two mini-batches do not count: in
    between, the PRM was trained on this very prompt.
    """
    if scores is None:
        return PairCount(0.0, 0.0), {}
    total_B = scores.log_ratio(rollouts.mask_BT).sum(-1)
    group_B = rollouts.group_B
    valid_B = rollouts.valid_B
    if scores.mini_batch_B is not None:
        group_B = group_B * len(group_B) + scores.mini_batch_B
    pairs, metrics = measure_pairs(rollouts, total_B, when, group_B)
    if valid_B.any():
        metrics[f"prm/absolute_accuracy/{when}_update"] = absolute_accuracy(
            total_B[valid_B], rollouts.label_B[valid_B]
        )
    return pairs, metrics
