# SPDX-License-Identifier: Apache-2.0
"""Offline training of an implicit PRM on verl's engines, one process per rank (torchrun), without Ray."""

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
from prime_ext.algorithms.prm_losses.kto import mismatched_partners
from prime_ext.config.sharding import name_all_ranks
from prime_ext.offline_prm.batches import (
    Batch,
    TokenRow,
    build_batch,
    encode,
    epoch_batches,
    steps_per_epoch,
    usable_groups,
)
from prime_ext.offline_prm.data import BadData, Example, LabelledData
from prime_ext.offline_prm.losses import STEP_END, STEP_LABEL, STEP_WEIGHT, StepLoss
from prime_ext.offline_prm.run_files import Checkpoints, MetricsLog
from prime_ext.offline_prm.settings import OfflineSettings
from prime_ext.offline_prm.validation import validation_metrics
from prime_ext.prm.worker import LABEL, OFFSET, OUTPUT_FIELD, REFERENCE_LOG_PROBS, WEIGHT, ImplicitPRMWorker, PRMLoss
from prime_ext.utils.text_tokens import TextEncoder, TextError


class OfflineTrainer:
    """Trains on labelled responses. Every rank holds the same data and computes its share of each mini-batch.

    Args:
        config: the resolved configuration, for verl's sections.
        settings: the rest of it, validated.
        train: training data.
        validation: held-out data; may be empty.
    """

    def __init__(self, config: DictConfig, settings: OfflineSettings, train: LabelledData, validation: LabelledData):
        self.config = config
        self.settings = settings
        loss = StepLoss if settings.prm.by_step else PRMLoss
        self.loss = loss(settings.prm.loss, settings.prm.scale, settings.prm.loss_options)
        model = omega_conf_to_dataclass(config.model)
        self.encoder = TextEncoder(model.tokenizer, settings.data.append_eos)
        self.dropped: dict[str, dict[str, int]] = {}
        self.train_data, self.train_prompts = self._fitting(train, "train")
        if validation.prompts:
            self.val_data, self.val_prompts = self._fitting(validation, "validation")
        else:
            self.val_data, self.val_prompts = validation, []
        self.per_epoch = steps_per_epoch(len(self.train_prompts), settings.data.prompts_per_step)
        self.total_steps = settings.trainer.epochs * self.per_epoch
        torch.manual_seed(settings.trainer.seed)
        self.reference = self._worker(settings.prm.reference_path, forward_only=True)
        self.worker = self._worker(config.model.path, forward_only=False)
        self.worker.set_loss_fn(self.loss)
        engine = self.worker.engine
        self.dp_rank, self.dp_size = engine.get_data_parallel_rank(), engine.get_data_parallel_size()
        self._val_reference: list[torch.Tensor] | None = None
        self.final_metrics: dict[str, float] = {}

    def _fitting(self, data: LabelledData, name: str) -> tuple[LabelledData, list[list[int]]]:
        prompts = []
        for prompt, examples in zip(data.prompts, data.examples, strict=True):
            try:
                prompts.append(self.encoder.prompt(prompt))
            except TextError as error:
                raise BadData(f"{examples[0].where}: {error}") from error
        limits = self.settings.data
        kept, kept_prompts, self.dropped[name] = usable_groups(
            data, prompts, limits.max_length, limits.overlong, self.encoder
        )
        if name == "train" and self.settings.prm.loss == "kto" and len(kept_prompts) < 2:
            raise BadData(f"{examples[0].where}: kto needs at least two prompts that fit into data.max_length")
        return kept, kept_prompts

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

    def fit(self, checkpoints: Checkpoints, log: MetricsLog) -> int:
        """Train from the latest checkpoint, or from the start. Returns the number of steps made in all."""
        step = checkpoints.resume(self.worker)
        log.start_after(step)
        if step == 0:
            log.write(0, self.validate())
        elif step == self.total_steps:
            self.final_metrics = self.validate()
        run = self.settings.trainer
        epoch, batches = -1, []
        with tqdm(total=self.total_steps, initial=step, desc="implicit PRM", disable=dist.get_rank() > 0) as progress:
            while step < self.total_steps:
                if step // self.per_epoch != epoch:
                    epoch = step // self.per_epoch
                    data = self.settings.data
                    batches = epoch_batches(len(self.train_prompts), data.prompts_per_step, data.seed, epoch)
                metrics = self.train_step(batches[step % self.per_epoch])
                step += 1
                last = step == self.total_steps
                if last or (run.val_freq and step % run.val_freq == 0):
                    self.final_metrics = self.validate()
                    metrics.update(self.final_metrics)
                log.write(step, {**metrics, "train/epoch": step / self.per_epoch})
                progress.update()
                progress.set_postfix({k.rpartition("/")[2]: f"{metrics[k]:.4g}" for k in _SHOWN if k in metrics})
                if last or (run.save_freq and step % run.save_freq == 0):
                    checkpoints.save(self.worker, step)
        return step

    def train_step(self, groups: Sequence[int]) -> dict[str, float]:
        """One optimiser step on all responses of some prompts. Returns its metrics."""
        started = time.perf_counter()
        examples = [example for group in groups for example in self.train_data.examples[group]]
        sequences = self._encoded(self.train_prompts, examples)
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
        found = self._shared(tu.get(output, "metrics") if output is not None else None)
        metrics = {f"train/{name}": _last(found[name]) for name in ("loss", "grad_norm") if name in found}
        metrics["train/lr"] = learning_rate
        metrics["train/responses"] = len(sequences)
        metrics["train/tokens"] = sum(map(len, sequences))
        if not self.settings.prm.by_step:
            sum_B = _ratio_sums(log_probs, fields[REFERENCE_LOG_PROBS])
            label_B = torch.tensor([float(example.label or 0.0) for example in examples])
            group_B = torch.tensor([example.group for example in examples])
            accuracy = pair_accuracy(sum_B, label_B, group_B)
            if accuracy is not None:
                metrics["train/pair_accuracy"] = accuracy
        metrics["train/seconds"] = time.perf_counter() - started
        return metrics

    def validate(self) -> dict[str, float]:
        """Metrics on the held-out prompts; none without any."""
        if not self.val_prompts:
            return {}
        examples = [example for examples in self.val_data.examples for example in examples]
        per_pass = 8 * self.settings.data.prompts_per_step
        if self._val_reference is None:
            self._val_reference = self._score_in_parts(self.reference, examples, per_pass)
        log_probs = self._score_in_parts(self.worker, examples, per_pass)
        ratios = [
            log_ratio(new, old, torch.ones_like(new)) for new, old in zip(log_probs, self._val_reference, strict=True)
        ]
        sequences = self._encoded(self.val_prompts, examples)
        return validation_metrics(self.settings.prm, self.val_data, examples, sequences, ratios)

    # ---- parts of a step -----------------------------------------------------------------------------------------

    def _encoded(self, prompts: list[list[int]], examples: Sequence[Example]) -> list[TokenRow]:
        limit = self.settings.data.max_length
        return [encode(self.encoder, prompts[example.group], example, limit) for example in examples]

    def _response_fields(
        self, examples: list[Example], sequences: list[TokenRow]
    ) -> tuple[list[int], dict[str, list[torch.Tensor]]]:
        """Rows that count, and what the loss needs of them."""
        label_B = torch.tensor([float(example.label or 0.0) for example in examples])
        group_B = torch.tensor([example.group for example in examples])
        valid_B = torch.ones_like(label_B, dtype=torch.bool)
        loss, score_B = PRM_LOSSES[self.settings.prm.loss], None
        if self.settings.prm.loss == "kto" and self.settings.prm.kto.mismatched:
            score_B = self._mismatched(group_B, valid_B, sequences)
        elif loss.needs_scores:
            score_B = self._log_ratio_sums(sequences)
        rows = loss.prepare(label_B, group_B, valid_B, score_B, **self.settings.prm.prepare_options)
        kept = rows.counts_B.nonzero()[:, 0]
        rows = rows[kept]
        columns = {LABEL: rows.target_B, WEIGHT: rows.weight_B, OFFSET: rows.offset_B}
        return kept.tolist(), {name: list(values.unbind()) for name, values in columns.items()}

    def _mismatched(self, group_B: torch.Tensor, valid_B: torch.Tensor, sequences: list[TokenRow]) -> torch.Tensor:
        """Summed log-ratios of each prompt with a response to another prompt of the mini-batch."""
        partner_B = mismatched_partners(group_B, valid_B).tolist()
        limit = self.settings.data.max_length
        pairs = [
            TokenRow(own.prompt, sequences[partner].response[: limit - len(own.prompt)])
            for own, partner in zip(sequences, partner_B, strict=True)
        ]
        return self._log_ratio_sums(pairs)

    def _log_ratio_sums(self, sequences: Sequence[TokenRow]) -> torch.Tensor:
        return _ratio_sums(self.score(self.worker, sequences), self.score(self.reference, sequences))

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

    def _score_in_parts(self, worker: ImplicitPRMWorker, examples: Sequence[Example], size: int) -> list[torch.Tensor]:
        scores = []
        for start in range(0, len(examples), size):
            scores += self.score(worker, self._encoded(self.val_prompts, examples[start : start + size]))
        return scores

    @staticmethod
    def _gather(of_row: dict[int, torch.Tensor], count: int) -> list[torch.Tensor]:
        """The values of the first ``count`` rows, which the ranks have between them; nothing if they have none."""
        parts: list[Any] = [None] * dist.get_world_size()
        # Copies: a part of a tensor would take the whole of it along.
        dist.all_gather_object(parts, {row: values.clone() for row, values in of_row.items() if row < count})
        everything = {row: values for part in parts for row, values in part.items()}
        return [everything[row] for row in sorted(everything)]

    @staticmethod
    def _shared(value: Any) -> Any:
        """The value of the first rank."""
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    # ---- the result ----------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, torch.Tensor]:
        """All weights on rank 0, in host memory; empty on the other ranks."""
        tensors, _ = self.worker.engine.get_per_tensor_param()
        kept = {}
        for name, tensor in tensors:
            if dist.get_rank() == 0:
                kept[name] = tensor.detach().to("cpu", copy=True)
        return kept

    @property
    def folder(self) -> Path:
        return Path(self.settings.trainer.output_dir)


def _ratio_sums(new: Sequence[torch.Tensor], old: Sequence[torch.Tensor]) -> torch.Tensor:
    """Summed log-ratio of each row."""
    return torch.stack([(a - b).sum() for a, b in zip(new, old, strict=True)])


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
