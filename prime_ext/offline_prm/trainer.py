# SPDX-License-Identifier: Apache-2.0
"""Offline training of an implicit PRM on verl's engines, one process per rank (torchrun), without Ray."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import DictConfig
from tqdm import tqdm
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig

from prime_ext.algorithms.implicit_reward import log_ratio
from prime_ext.algorithms.prm_accuracy import pair_accuracy
from prime_ext.algorithms.prm_losses import PRM_LOSSES
from prime_ext.config.engines import name_all_ranks
from prime_ext.offline_prm.batches import (
    Batch,
    TokenRow,
    build_batch,
    encode,
    epoch_batches,
    steps_per_epoch,
    usable_groups,
)
from prime_ext.offline_prm.data import Example, LabelledData
from prime_ext.offline_prm.losses import (
    STEP_END,
    STEP_LABEL,
    STEP_WEIGHT,
    StepLoss,
    outcomes_and_groups,
    validation_metrics,
)
from prime_ext.offline_prm.settings import OfflineSettings
from prime_ext.prm.worker import LABEL, OFFSET, OUTPUT_FIELD, REFERENCE_LOG_PROBS, WEIGHT, ImplicitPRMWorker, PRMLoss
from prime_ext.run.checkpoint import MARKER, complete_steps, mark_complete, mark_incomplete, prune
from prime_ext.run.metrics_file import read_metrics
from prime_ext.utils.files import read_json, write_json_lines
from prime_ext.utils.run_store import check_identity
from prime_ext.utils.text_tokens import TextEncoder


class Checkpoints:
    """Model, optimiser, schedule and random state; the position in the data follows from the step.

    Args:
        root: folder of the checkpoints.
        identity: what a run must share with the one that wrote a checkpoint.
        keep: how many to keep.
    """

    def __init__(self, root: Path, identity: dict[str, Any], keep: int):
        self.root, self.keep, self.identity = root, keep, identity

    def check(self) -> int:
        """The step of the latest whole checkpoint, 0 without any.

        Raises:
            RunError: it was written by a run with other settings or data.
        """
        steps = complete_steps(self.root)
        if not steps:
            return 0
        folder = self._folder(steps[-1])
        advice = "choose another trainer.output_dir or delete the folder"
        check_identity(folder, read_json(folder / MARKER)["identity"], self.identity, advice)
        return steps[-1]

    def resume(self, worker: ImplicitPRMWorker) -> int:
        """Restore the latest checkpoint. Returns its step, 0 without any."""
        step = self.check()
        if step:
            worker.load_checkpoint(str(self._folder(step)))
        return step

    def save(self, worker: ImplicitPRMWorker, step: int) -> None:
        """Write one, then declare it whole, then delete older ones."""
        folder = self._folder(step)
        if dist.get_rank() == 0:
            mark_incomplete(folder)
        dist.barrier()
        worker.save_checkpoint(str(folder), global_step=step)
        dist.barrier()
        if dist.get_rank() == 0:
            mark_complete(folder, {"step": step, "identity": self.identity})
            prune(self.root, self.keep, step)
        dist.barrier()

    def _folder(self, step: int) -> Path:
        return self.root / f"global_step_{step}"


class MetricsLog:
    """JSON Lines with ``step`` and ``data``, like verl's ``file`` logger, and verl's ``Tracking``. Of one rank."""

    def __init__(self, path: Path, tracking: Any = None):
        self.path, self.tracking = path, tracking

    def start_after(self, step: int) -> None:
        """Forget what an interrupted run wrote after the checkpoint it is resumed from, and the line that was cut."""
        known = read_metrics(self.path) if step else {}
        write_json_lines(self.path, [{"step": at, "data": data} for at, data in known.items() if at <= step])

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """One line."""
        with self.path.open("a") as lines:
            lines.write(json.dumps({"step": step, "data": metrics}) + "\n")
        if self.tracking is not None:
            self.tracking.log(data=metrics, step=step)


class OfflineTrainer:
    """Trains on labelled responses. Every rank holds the same data and computes its share of each mini-batch.

    Args:
        config: the resolved configuration, for verl's sections.
        settings: the rest of it, validated.
        train, validation: data; nothing need be held out.
    """

    def __init__(self, config: DictConfig, settings: OfflineSettings, train: LabelledData, validation: LabelledData):
        self.config = config
        self.settings = settings
        prm = settings.prm
        self.loss = StepLoss(prm.loss, prm.beta, prm.steps.score) if prm.by_step else PRMLoss(prm.loss, prm.beta)
        model = omega_conf_to_dataclass(config.model)
        self.encoder = TextEncoder(model.tokenizer, settings.data.append_eos)
        limits = settings.data.max_length, settings.data.overlong
        self.dropped: dict[str, dict[str, int]] = {}
        self.data, self.dropped["train"] = usable_groups(train, self.encoder, *limits)
        self.validation = validation
        if validation.prompts:
            self.validation, self.dropped["validation"] = usable_groups(validation, self.encoder, *limits)
        self.per_epoch = steps_per_epoch(len(self.data.prompts), settings.data.prompts_per_step)
        self.total_steps = settings.trainer.epochs * self.per_epoch
        torch.manual_seed(settings.trainer.seed)
        self.reference = self._worker(settings.prm.reference_path, forward_only=True)
        self.worker = self._worker(config.model.path, forward_only=False)
        self.worker.set_loss_fn(self.loss)
        engine = self.worker.engine
        self.dp_rank, self.dp_size = engine.get_data_parallel_rank(), engine.get_data_parallel_size()
        self._val_reference: list[torch.Tensor] | None = None
        self.final_metrics: dict[str, float] = {}

    def _worker(self, path: str, forward_only: bool) -> ImplicitPRMWorker:
        model = self.config.model.copy()
        model.path = path
        # The first worker opens the process group.
        name_all_ranks(self.config.engine, int(os.environ["WORLD_SIZE"]))
        engine = omega_conf_to_dataclass(self.config.engine)
        batching = self.settings.batching
        engine.forward_only = forward_only
        engine.use_dynamic_bsz = batching.use_dynamic_bsz
        engine.max_token_len_per_gpu = engine.infer_max_token_len_per_gpu = batching.max_token_len_per_gpu
        engine.micro_batch_size_per_gpu = engine.infer_micro_batch_size_per_gpu = batching.micro_batch_size_per_gpu
        optimizer = omega_conf_to_dataclass(self.config.optim)
        optimizer.total_training_steps = self.total_steps
        worker = ImplicitPRMWorker(
            TrainingWorkerConfig(
                model_type="language_model",
                model_config=omega_conf_to_dataclass(model),
                engine_config=engine,
                optimizer_config=optimizer,
                checkpoint_config=omega_conf_to_dataclass(self.config.checkpoint),
            ),
            role="reference" if forward_only else "prm",
        )
        worker.reset()
        return worker

    # ---- the loop ------------------------------------------------------------------------------------------------

    def fit(self, checkpoints: Checkpoints, log: MetricsLog | None) -> int:
        """Train from the latest checkpoint, or from the start; ``log`` is None on all ranks but the first.

        Returns the number of steps made in all.
        """
        step = checkpoints.resume(self.worker)
        if step in (0, self.total_steps):
            self.final_metrics = self.validate()
        if log is not None:
            log.start_after(step)
            if step == 0 and self.final_metrics:
                log.write(0, self.final_metrics)
        run, data = self.settings.trainer, self.settings.data
        epoch, batches = -1, []
        with tqdm(total=self.total_steps, initial=step, desc="implicit PRM", disable=log is None) as progress:
            while step < self.total_steps:
                if step // self.per_epoch != epoch:
                    epoch = step // self.per_epoch
                    batches = epoch_batches(len(self.data.prompts), data.prompts_per_step, data.seed, epoch)
                metrics = self.train_step(batches[step % self.per_epoch])
                step += 1
                last = step == self.total_steps
                if last or (run.val_freq and step % run.val_freq == 0):
                    self.final_metrics = self.validate()
                    metrics.update(self.final_metrics)
                if log is not None:
                    log.write(step, {**metrics, "train/epoch": step / self.per_epoch})
                progress.update()
                progress.set_postfix({k.rpartition("/")[2]: f"{metrics[k]:.4g}" for k in _SHOWN if k in metrics})
                if last or (run.save_freq and step % run.save_freq == 0):
                    checkpoints.save(self.worker, step)
        return step

    def train_step(self, groups: Sequence[int]) -> dict[str, float]:
        """One optimiser step on all responses of some prompts. Returns its metrics."""
        started = time.perf_counter()
        examples = [example for group in groups for example in self.data.examples[group]]
        sequences = self._encoded(self.data, examples)
        if self.settings.prm.by_step:
            kept, fields = self._step_fields(sequences)
        else:
            kept, fields = self._response_fields(examples, sequences)
        if not kept:
            # For example prompts of one class under weights that compare classes: nothing to learn from.
            return {"train/responses": 0.0, "train/seconds": time.perf_counter() - started}
        examples, sequences = [examples[row] for row in kept], [sequences[row] for row in kept]
        fields[REFERENCE_LOG_PROBS] = self.score(self.reference, sequences)
        batch = self._batch(sequences, fields, _UPDATE_OPTIONS)
        if WEIGHT in batch.tensors.keys():
            batch.tensors[WEIGHT] = batch.tensors[WEIGHT] / len(sequences)
        tu.assign_non_tensor(batch.tensors, global_batch_size=batch.size, mini_batch_size=batch.size)
        # verl reports the rate after the step.
        learning_rate = self.worker.engine.lr_scheduler.get_last_lr()[0]
        self.loss.start_recording()
        output = self.worker.train_mini_batch(batch.tensors)
        log_probs = self._gather(self.loss.stop_recording(), len(sequences))
        # Those of the first rank.
        box: list[Any] = [None if output is None else tu.get(output, "metrics")]
        dist.broadcast_object_list(box, src=0)
        metrics = {f"train/{name}": _last(box[0][name]) for name in ("loss", "grad_norm") if name in box[0]}
        metrics["train/lr"] = learning_rate
        metrics["train/responses"] = len(sequences)
        metrics["train/tokens"] = sum(map(len, sequences))
        if not self.settings.prm.by_step:
            sum_B = _ratio_sums(log_probs, fields[REFERENCE_LOG_PROBS])
            accuracy = pair_accuracy(sum_B, *outcomes_and_groups(examples))
            if accuracy is not None:
                metrics["train/pair_accuracy"] = accuracy
        metrics["train/seconds"] = time.perf_counter() - started
        return metrics

    def validate(self) -> dict[str, float]:
        """Metrics on the held-out prompts; none without any."""
        data = self.validation
        if not data.prompts:
            return {}
        examples = [example for examples in data.examples for example in examples]
        sequences = self._encoded(data, examples)
        if self._val_reference is None:
            self._val_reference = self._score_in_parts(self.reference, sequences)
        log_probs = self._score_in_parts(self.worker, sequences)
        ratios = _log_ratios(log_probs, self._val_reference)
        return validation_metrics(self.settings.prm, data, examples, sequences, ratios)

    # ---- parts of a step -----------------------------------------------------------------------------------------

    def _encoded(self, data: LabelledData, examples: Sequence[Example]) -> list[TokenRow]:
        limit = self.settings.data.max_length
        return [encode(self.encoder, data.prompt_ids[example.group], example, limit) for example in examples]

    def _response_fields(
        self, examples: list[Example], sequences: list[TokenRow]
    ) -> tuple[list[int], dict[str, list[torch.Tensor]]]:
        """Rows that count, and what the loss needs of them."""
        prm = self.settings.prm
        label_B, group_B = outcomes_and_groups(examples)
        valid_B = torch.ones_like(label_B, dtype=torch.bool)
        loss, score_B = PRM_LOSSES[prm.loss], None
        if loss.needs_scores:
            score_B = _ratio_sums(self.score(self.worker, sequences), self.score(self.reference, sequences))
        rows = loss.prepare(label_B, group_B, valid_B, score_B)
        kept = rows.weight_B.nonzero()[:, 0]
        rows = rows[kept]
        columns = {LABEL: rows.target_B, WEIGHT: rows.weight_B, OFFSET: rows.offset_B}
        return kept.tolist(), {name: list(values.unbind()) for name, values in columns.items()}

    @staticmethod
    def _step_fields(sequences: list[TokenRow]) -> tuple[list[int], dict[str, list[torch.Tensor]]]:
        """Rows with a labelled step, and ends, labels and weights of the steps at their last tokens."""
        kept = [row for row, s in enumerate(sequences) if any(label is not None for label in s.step_labels)]
        total = sum(label is not None for row in kept for label in sequences[row].step_labels)
        fields: dict[str, list[torch.Tensor]] = {STEP_END: [], STEP_LABEL: [], STEP_WEIGHT: []}
        for row in kept:
            columns = {name: torch.zeros(len(sequences[row].response)) for name in fields}
            for end, label in zip(sequences[row].step_ends, sequences[row].step_labels, strict=True):
                columns[STEP_END][end] = 1.0
                if label is not None:
                    columns[STEP_LABEL][end] = label
                    columns[STEP_WEIGHT][end] = 1.0 / total
            for name, values in columns.items():
                fields[name].append(values)
        return kept, fields

    # ---- scoring, and what ranks tell each other -----------------------------------------------------------------

    def _batch(
        self, sequences: Sequence[TokenRow], fields: dict[str, list[torch.Tensor]], options: dict[str, Any]
    ) -> Batch:
        batching = self.settings.batching
        multiple = 1 if batching.use_dynamic_bsz else batching.micro_batch_size_per_gpu or 1
        return build_batch(sequences, fields, self.dp_rank, self.dp_size, multiple, **options)

    def score(self, worker: ImplicitPRMWorker, sequences: Sequence[TokenRow]) -> list[torch.Tensor]:
        """Log-probabilities of the response tokens of every row, on every rank."""
        batch = self._batch(sequences, {}, _SCORE_OPTIONS)
        output = worker.score(batch.tensors)
        own = {} if output is None else dict(zip(batch.rows, output["out"].unbind(), strict=True))
        return self._gather(own, len(sequences))

    def _score_in_parts(self, worker: ImplicitPRMWorker, sequences: Sequence[TokenRow]) -> list[torch.Tensor]:
        size = 8 * self.settings.data.prompts_per_step
        parts = (sequences[start : start + size] for start in range(0, len(sequences), size))
        return [scores for part in parts for scores in self.score(worker, part)]

    @staticmethod
    def _gather(of_row: dict[int, torch.Tensor], count: int) -> list[torch.Tensor]:
        """The values of the first ``count`` rows, which the ranks have between them; nothing if they have none."""
        parts: list[Any] = [None] * dist.get_world_size()
        # Copies: a part of a tensor would take the whole of it along.
        dist.all_gather_object(parts, {row: values.clone() for row, values in of_row.items() if row < count})
        everything = {row: values for part in parts for row, values in part.items()}
        return [everything[row] for row in sorted(everything)]

    # ---- the result ----------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, torch.Tensor]:
        """All weights on rank 0, in host memory; empty on the other ranks."""
        tensors, _ = self.worker.engine.get_per_tensor_param()
        kept = {}
        for name, tensor in tensors:
            if dist.get_rank() == 0:
                kept[name] = tensor.detach().to("cpu", copy=True)
        return kept


def _log_ratios(new: Sequence[torch.Tensor], old: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Compute the log-ratio of every token, row by row."""
    return [log_ratio(own, other, torch.ones_like(own)) for own, other in zip(new, old, strict=True)]


def _ratio_sums(new: Sequence[torch.Tensor], old: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sum the log-ratios of each row."""
    return torch.stack([ratio_T.sum() for ratio_T in _log_ratios(new, old)])


def _last(value: Any) -> float:
    return float(value[-1] if isinstance(value, list) else value)


_SHOWN = ("train/loss", "train/pair_accuracy", "val/pair_accuracy")
_SCORE_OPTIONS = {OUTPUT_FIELD: "out", "calculate_entropy": False, "compute_loss": False, "temperature": 1.0}
_UPDATE_OPTIONS = {
    "epochs": 1,
    "seed": 0,
    "dataloader_kwargs": {"shuffle": False},
    "temperature": 1.0,
    "calculate_entropy": False,
}
