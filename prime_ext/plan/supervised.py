# SPDX-License-Identifier: Apache-2.0
"""Supervised runs as the plan sees them: verl's SFT trainer, and the training of a step reward model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.checks import SettingsError
from prime_ext.plan.engines import read_engine
from prime_ext.plan.flops import training_passes
from prime_ext.plan.memory import Engine, EngineMemory, checkpoint_bytes
from prime_ext.plan.model_shape import read_shape
from prime_ext.plan.plan import Known, Part, Run
from prime_ext.step_rm.labels import LABELS

STEP_RM_CONFIG = "step_rm"


def read_sft(config: DictConfig, known: Known) -> Run:
    """A run of verl's SFT trainer. Raises ``PlanError``."""
    data, trainer = config.data, config.trainer
    devices, cpu = int(trainer.n_gpus_per_node * trainer.nnodes), trainer.device == "cpu"
    place: dict[str, Any] = {"devices": devices, "cpu": cpu, "longest": int(data.max_length)}
    keep = trainer.max_ckpt_to_keep
    return _run(
        config,
        known,
        read_engine("model", "model", config.model, config.engine, data, **place),
        devices=devices,
        rows=count_rows(data.train_files),
        rows_per_step=int(data.train_batch_size),
        drops_rest=True,
        epochs=trainer.total_epochs,
        steps=trainer.total_training_steps,
        contents=config.checkpoint.save_contents,
        # The oldest goes when the next is complete.
        kept=None if keep is None else int(keep) + 1,
        levers=lambda part, waiting: {
            "model.use_fused_kernels=true": part.logits,
            "a smaller data.max_token_len_per_gpu (TOKENS_PER_GPU)": part.activations,
            "more devices (N_GPUS), or model.lora_rank=16": part.gradients + part.optimizer,
        },
    )


def check_step_rm(config: DictConfig) -> list[str]:
    """What the training of a step reward model would refuse. Returns one line per problem."""
    from prime_ext.step_rm.train.settings import StepRMSettings

    values: Any = OmegaConf.to_container(config)
    try:
        StepRMSettings.from_mapping(values)
    except SettingsError as error:
        return [str(error)]
    return []


def read_step_rm(config: DictConfig, known: Known) -> Run:
    """The training of a step reward model, by transformers' Trainer on every device. Raises ``PlanError``."""
    model, optim, trainer = config.model, config.optim, config.trainer
    shape = read_shape("model.path", str(model.path), bool(model.trust_remote_code), len(LABELS))
    engine = Engine(
        name="model",
        shape=shape,
        trained=shape.weights,
        adapter=0,
        weight_bytes=4,
        compute_bytes=2 if trainer.dtype == "bfloat16" else 4,
        shards=1,
        tokens=int(optim.batch_size * config.data.max_length),
        recompute=False,
        replicas=known.devices,
    )
    return _run(
        config,
        known,
        engine,
        devices=known.devices,
        rows=count_rows(config.data["files"], split="train"),
        rows_per_step=int(optim.batch_size * optim.accumulation * known.devices),
        drops_rest=False,
        epochs=optim.epochs,
        steps=None,
        contents=["model", "optimizer"],
        # keep_checkpoints, the best, and the finished model.
        kept=int(trainer.keep_checkpoints) + 1,
        levers=lambda part, waiting: {
            "a smaller optim.batch_size (BATCH)": part.activations,
            "a smaller model": part.optimizer,
        },
    )


def _run(
    config: DictConfig,
    known: Known,
    engine: Engine,
    *,
    devices: int,
    rows: tuple[int | None, list[str]],
    rows_per_step: int,
    drops_rest: bool,
    epochs: float,
    steps: int | None,
    contents: list[str],
    kept: int | None,
    levers: Callable[[EngineMemory, float], dict[str, float]],
) -> Run:
    """What both kinds share.

    Args:
        config, known: of the run.
        engine: its model.
        devices, kept, levers: as in :class:`Run`.
        rows: of the training data, and the files of these that are not here; from :func:`count_rows`.
        rows_per_step: of an optimiser step, on all devices.
        drops_rest: whether the last, incomplete batch of an epoch is left out.
        epochs: passes over the rows.
        steps: optimiser steps, where the configuration names them.
        contents: of a checkpoint, by verl's names.
    """
    count, absent = known.rows or rows[0], rows[1]
    warnings: list[str] = []
    if steps is None and count is not None:
        batches = count // rows_per_step if drops_rest else -(-count // rows_per_step)
        steps = int(batches * epochs)
        if not batches:
            warnings = [f"{count} rows are fewer than the {rows_per_step} of a step, so that there would be none"]
    longest = int(config.data.max_length)
    length = min(known.mean_tokens or longest, longest)
    at_most = f"{longest:,} at most (MEAN_TOKENS for their mean)"
    return Run(
        facts={
            "devices": devices,
            "rows": "unknown (no data here; ROWS)" if count is None else count,
            "rows per step": rows_per_step,
            "epochs": epochs,
            "tokens per row": at_most if known.mean_tokens is None else length,
            "tokens per micro-batch and device": engine.tokens,
            "parameters": engine.shape.weights,
            "trained parameters": engine.trained,
        },
        engines={engine.name: engine},
        parts=[Part("update", engine.name, training_passes(engine.recompute, bool(engine.adapter)))],
        sequences=rows_per_step,
        length=length,
        share_of_length=1.0,
        devices=devices,
        cpu=config.trainer.device == "cpu",
        steps=steps,
        checkpoint={engine.name: checkpoint_bytes(engine, contents)},
        kept=kept,
        levers=levers,
        device_bytes=known.device_bytes,
        warnings=warnings,
        not_here=[f"data: {name} does not exist" for name in absent],
    )


def count_rows(files: Any, split: str | None = None) -> tuple[int | None, list[str]]:
    """Rows of parquet files, None unless all are here; and those that are not.

    Args:
        files: a path, or a list of paths.
        split: value of the column ``split`` of the rows that count; None for all rows.
    """
    import pyarrow.parquet as pq

    names = [files] if isinstance(files, str) else [str(name) for name in files or ()]
    missing = [name for name in names if not Path(name).expanduser().is_file()]
    if missing or not names:
        return None, missing
    count = 0
    for name in names:
        file = Path(name).expanduser()
        if split is None:
            count += pq.ParquetFile(file).metadata.num_rows
        else:
            count += pq.read_table(file, columns=["split"])["split"].to_pylist().count(split)
    return count, []
