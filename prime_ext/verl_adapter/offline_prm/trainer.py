# SPDX-License-Identifier: Apache-2.0
"""Offline training of an implicit PRM on verl's engines: a process per rank (torchrun), no Ray."""

import os
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import DictConfig
from tqdm import tqdm
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig

from prime_ext.algorithms.implicit_reward import log_ratio
from prime_ext.algorithms.prm_accuracy import count_pairs
from prime_ext.algorithms.prm_losses import PRM_LOSSES
from prime_ext.config.checks import refuse
from prime_ext.config.engines import name_all_ranks
from prime_ext.prm.fields import (
    LABEL,
    OFFSET,
    OUTPUT_FIELD,
    REFERENCE_LOG_PROBS,
    WEIGHT,
)
from prime_ext.prm.loss import PRMLoss
from prime_ext.run.checkpoint import mark_incomplete, prune
from prime_ext.run.training_runs import Checkpoints, checkpoint_step
from prime_ext.utils.text_tokens import TextEncoder
from prime_ext.verl_adapter.offline_prm.batches import (
    TokenRow,
    build_batch,
    encode,
    epoch_batches,
    prepare_groups,
    steps_per_epoch,
)
from prime_ext.verl_adapter.offline_prm.labeled_responses import PromptGroup
from prime_ext.verl_adapter.offline_prm.losses import (
    STEP_LABEL,
    STEP_WEIGHT,
    StepLoss,
    validation_metrics,
)
from prime_ext.verl_adapter.offline_prm.offline_settings import OfflineSettings, check_warmup
from prime_ext.verl_adapter.prm_worker import ImplicitPRMWorker

_SHOWN = ("train/loss", "train/pair_accuracy", "val/pair_accuracy")
_SCORE_OPTIONS = {
    OUTPUT_FIELD: "out",
    "calculate_entropy": False,
    "compute_loss": False,
    "temperature": 1.0,
}
_UPDATE_OPTIONS = {
    "epochs": 1,
    "seed": 0,
    "dataloader_kwargs": {"shuffle": False},
    "temperature": 1.0,
    "calculate_entropy": False,
}


class OfflineTrainer:
    """Trainer on labeled responses; a rank has all data and computes its share of mini-batches."""

    def __init__(
        self,
        config: DictConfig,
        settings: OfflineSettings,
        train: list[PromptGroup],
        val: list[PromptGroup],
    ):
        self.config = config
        self.settings = settings
        prm = settings.prm
        self.loss = (StepLoss if prm.by_step else PRMLoss)(prm.loss, prm.beta)
        self.encoder = TextEncoder(
            omega_conf_to_dataclass(config.model).tokenizer, settings.data.append_eos
        )
        self.data, self.validation = (
            prepare_groups(groups, self.encoder, settings) for groups in (train, val)
        )
        self.per_epoch = steps_per_epoch(len(self.data), settings.data.prompts_per_step)
        self.total_steps = settings.trainer.epochs * self.per_epoch
        refuse(check_warmup(config.optim, self.total_steps))
        torch.manual_seed(settings.trainer.seed)
        self.reference = self._worker(settings.prm.reference_path, forward_only=True)
        self.worker = self._worker(config.model.path, forward_only=False)
        self.worker.set_loss_fn(self.loss)
        engine = self.worker.engine
        self.dp_rank = engine.get_data_parallel_rank()
        self.dp_size = engine.get_data_parallel_size()
        self._val_reference: list[torch.Tensor] | None = None
        self.final_metrics: dict[str, float] = {}

    def _worker(self, path: str, forward_only: bool) -> ImplicitPRMWorker:
        model = self.config.model.copy()
        model.path = path
        # The first worker opens the process group.
        name_all_ranks(self.config.engine, int(os.environ["WORLD_SIZE"]))
        engine = omega_conf_to_dataclass(self.config.engine)
        engine.forward_only = forward_only
        engine.use_dynamic_bsz = True
        engine.max_token_len_per_gpu = self.settings.batching.max_token_len_per_gpu
        engine.infer_max_token_len_per_gpu = engine.max_token_len_per_gpu
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

    def fit(self, checkpoints: Checkpoints, loggers: Sequence[Any] = ()) -> int:
        """Train from the latest checkpoint, if any; return the steps. Rank 0 has ``loggers``."""
        latest = checkpoints.find_latest()
        step = checkpoint_step(latest)
        if latest:
            self.worker.load_checkpoint(str(latest))
        if step in (0, self.total_steps):
            self.final_metrics = self.validate()
        if step == 0 and self.final_metrics:
            for logger in loggers:
                logger.log(data=self.final_metrics, step=0)
        run = self.settings.trainer
        data = self.settings.data
        batches: list[list[int]] = []
        options = {
            "total": self.total_steps,
            "initial": step,
            "desc": "implicit PRM",
            "disable": not loggers,
        }
        progress = tqdm(range(step + 1, self.total_steps + 1), **options)
        for step in progress:
            epoch, position = divmod(step - 1, self.per_epoch)
            if position == 0 or not batches:
                batches = epoch_batches(len(self.data), data.prompts_per_step, data.seed, epoch)
            metrics = self.train_step(batches[position])
            last = step == self.total_steps
            if last or (run.val_freq and step % run.val_freq == 0):
                self.final_metrics = self.validate()
                metrics.update(self.final_metrics)
            for logger in loggers:
                logger.log(data={**metrics, "train/epoch": step / self.per_epoch}, step=step)
            progress.set_postfix(
                {k.rpartition("/")[2]: f"{metrics[k]:.4g}" for k in _SHOWN if k in metrics}
            )
            if last or (run.save_freq and step % run.save_freq == 0):
                self._save(checkpoints, step)
        return self.total_steps

    def _save(self, checkpoints: Checkpoints, step: int) -> None:
        """Write a checkpoint, mark it as complete, and delete older ones; data follow the step."""
        folder = checkpoints.root / f"global_step_{step}"
        first = dist.get_rank() == 0
        if first:
            mark_incomplete(folder)
        dist.barrier()
        self.worker.save_checkpoint(str(folder), global_step=step)
        dist.barrier()
        if first:
            checkpoints.complete(folder)
            prune(checkpoints.root, self.settings.trainer.keep_checkpoints, step)
        dist.barrier()

    def train_step(self, groups: Sequence[int]) -> dict[str, float]:
        """Make one optimizer step on all responses of some prompts, and return its metrics."""
        started = time.perf_counter()
        sequences, label_B, group_B = self._encode([self.data[group] for group in groups])
        if self.settings.prm.by_step:
            kept, fields = _step_fields(sequences)
        else:
            kept, fields = self._response_fields(sequences, label_B, group_B)
        if not kept:
            # Nothing to learn from, as in prompts of one class for a loss that compares classes.
            return {"train/responses": 0.0, "train/seconds": time.perf_counter() - started}
        sequences = [sequences[row] for row in kept]
        fields[REFERENCE_LOG_PROBS] = self.score(self.reference, sequences)
        batch, rows = build_batch(sequences, fields, self.dp_rank, self.dp_size, **_UPDATE_OPTIONS)
        if WEIGHT in batch.keys():
            batch[WEIGHT] = batch[WEIGHT] / len(sequences)
        size = len(rows) * self.dp_size
        tu.assign_non_tensor(batch, global_batch_size=size, mini_batch_size=size)
        # verl reports the rate after the step.
        learning_rate = self.worker.engine.lr_scheduler.get_last_lr()[0]
        self.loss.start_recording()
        output = self.worker.train_mini_batch(batch)
        log_probs = _gather(self.loss.stop_recording(), len(sequences))
        # The metrics of the first rank.
        box: list[Any] = [None if output is None else tu.get(output, "metrics")]
        dist.broadcast_object_list(box, src=0)
        metrics = {
            f"train/{name}": _get_last(box[0][name])
            for name in ("loss", "grad_norm")
            if name in box[0]
        }
        metrics["train/lr"] = learning_rate
        metrics["train/responses"] = len(sequences)
        metrics["train/tokens"] = sum(map(len, sequences))
        if not self.settings.prm.by_step:
            sum_B = _ratio_sums(log_probs, fields[REFERENCE_LOG_PROBS])
            accuracy = count_pairs(sum_B, label_B[kept], group_B[kept]).accuracy
            if accuracy is not None:
                metrics["train/pair_accuracy"] = accuracy
        metrics["train/seconds"] = time.perf_counter() - started
        return metrics

    def validate(self) -> dict[str, float]:
        """Return metrics on the held-out prompts; none without any."""
        if not self.validation:
            return {}
        sequences, label_B, group_B = self._encode(self.validation)
        if self._val_reference is None:
            self._val_reference = self._score_in_parts(self.reference, sequences)
        log_probs = self._score_in_parts(self.worker, sequences)
        ratios = _log_ratios(log_probs, self._val_reference)
        return validation_metrics(self.settings.prm, sequences, ratios, label_B, group_B)

    def _encode(
        self, groups: Sequence[PromptGroup]
    ) -> tuple[list[TokenRow], torch.Tensor, torch.Tensor]:
        """Tokenize all responses; return them, float32 labels and prompt numbers, ``(B,)`` each."""
        rows = [
            (number, group, example)
            for number, group in enumerate(groups)
            for example in group.examples
        ]
        limit = self.settings.data.max_length
        sequences = [
            encode(self.encoder, group.prompt_ids, example, limit) for _, group, example in rows
        ]
        labels = [float(example.label or 0.0) for _, _, example in rows]
        return sequences, torch.tensor(labels), torch.tensor([number for number, _, _ in rows])

    def _response_fields(
        self, sequences: list[TokenRow], label_B: torch.Tensor, group_B: torch.Tensor
    ) -> tuple[list[int], dict[str, list[torch.Tensor]]]:
        """Return the rows that count, and the fields of them that the loss needs."""
        valid_B = torch.ones_like(label_B, dtype=torch.bool)
        loss = PRM_LOSSES[self.settings.prm.loss]
        score_B = None
        if loss.needs_scores:
            score_B = _ratio_sums(
                self.score(self.worker, sequences), self.score(self.reference, sequences)
            )
        rows = loss.prepare(label_B, group_B, valid_B, score_B)
        kept = rows.weight_B.nonzero()[:, 0]
        rows = rows[kept]
        columns = {LABEL: rows.target_B, WEIGHT: rows.weight_B, OFFSET: rows.offset_B}
        return kept.tolist(), {name: list(values.unbind()) for name, values in columns.items()}

    def score(self, worker: ImplicitPRMWorker, sequences: Sequence[TokenRow]) -> list[torch.Tensor]:
        """Return the log-probabilities of the response tokens of every row, on every rank."""
        batch, rows = build_batch(sequences, {}, self.dp_rank, self.dp_size, **_SCORE_OPTIONS)
        output = worker.score(batch)
        log_probs = {} if output is None else dict(zip(rows, output["out"].unbind(), strict=True))
        return _gather(log_probs, len(sequences))

    def _score_in_parts(
        self, worker: ImplicitPRMWorker, sequences: Sequence[TokenRow]
    ) -> list[torch.Tensor]:
        size = 8 * self.settings.data.prompts_per_step
        parts = (sequences[start : start + size] for start in range(0, len(sequences), size))
        return [scores for chunk in parts for scores in self.score(worker, chunk)]

    def weights(self) -> dict[str, torch.Tensor]:
        """Return all weights on rank 0, in host memory; nothing on the other ranks."""
        tensors, _ = self.worker.engine.get_per_tensor_param()
        on_host = {}
        # Every rank takes part in the gathering of each tensor.
        for name, tensor in tensors:
            if dist.get_rank() == 0:
                on_host[name] = tensor.detach().to("cpu", copy=True)
        return on_host


def _step_fields(sequences: list[TokenRow]) -> tuple[list[int], dict[str, list[torch.Tensor]]]:
    """Return the rows with a labeled step, and the steps' labels and weights at their ends."""
    labeled = {
        row: sequence.labeled_ends
        for row, sequence in enumerate(sequences)
        if sequence.labeled_ends
    }
    total = sum(map(len, labeled.values()))
    fields: dict[str, list[torch.Tensor]] = {STEP_LABEL: [], STEP_WEIGHT: []}
    for row, ends in labeled.items():
        label_T, weight_T = torch.zeros(2, len(sequences[row].response))
        for end, label in ends:
            label_T[end] = label
            weight_T[end] = 1.0 / total
        fields[STEP_LABEL].append(label_T)
        fields[STEP_WEIGHT].append(weight_T)
    return list(labeled), fields


def _gather(by_row: dict[int, torch.Tensor], count: int) -> list[torch.Tensor]:
    """Gather the values of the first ``count`` rows from all ranks, in the order of the rows."""
    gathered: list[Any] = [None] * dist.get_world_size()
    # Copies, because sending a view would send the complete tensor.
    dist.all_gather_object(
        gathered, {row: values.clone() for row, values in by_row.items() if row < count}
    )
    everything = {
        row: values for values_by_row in gathered for row, values in values_by_row.items()
    }
    return [everything[row] for row in sorted(everything)]


def _log_ratios(new: Sequence[torch.Tensor], old: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Compute the log-ratio of every token, row by row."""
    return [
        log_ratio(log_prob_T, reference_T, torch.ones_like(log_prob_T))
        for log_prob_T, reference_T in zip(new, old, strict=True)
    ]


def _ratio_sums(new: Sequence[torch.Tensor], old: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sum the log-ratios of each row."""
    return torch.stack([ratio_T.sum() for ratio_T in _log_ratios(new, old)])


def _get_last(value: Any) -> float:
    return float(value[-1] if isinstance(value, list) else value)
