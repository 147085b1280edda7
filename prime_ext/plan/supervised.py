# SPDX-License-Identifier: Apache-2.0
"""Runs without rollouts as the plan sees them: verl's SFT trainer, step reward models, and offline implicit PRMs."""

from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.algorithms.prm_losses import PRM_LOSSES
from prime_ext.config.checks import SettingsError
from prime_ext.offline_prm.settings import OfflineSettings
from prime_ext.plan.flops import Passes, training_passes
from prime_ext.plan.memory import Engine, checkpoint_bytes, frozen, read_engine
from prime_ext.plan.model_shape import read_shape
from prime_ext.plan.plan import Known, Part, Run
from prime_ext.step_rm.labels import LABELS

STEP_RM_CONFIG = "step_rm"


def read_sft(config: DictConfig, known: Known) -> Run:
    """A run of verl's SFT trainer. Raises ``PlanError``."""
    data, trainer = config.data, config.trainer
    devices, cpu = int(trainer.n_gpus_per_node * trainer.nnodes), trainer.device == "cpu"
    place: dict[str, Any] = {"devices": devices, "cpu": cpu, "longest": int(data.max_length)}
    engine = read_engine("model", "model", config.model, config.engine, data, **place)
    rows, absent = count_rows(data.train_files)
    rows, size = known.rows or rows, int(data.train_batch_size)
    return _of_rows(
        config,
        known,
        engine,
        absent,
        {"devices": devices, "rows": rows, "rows per step": size, "epochs": trainer.total_epochs},
        # verl leaves the incomplete batch of an epoch out.
        None if rows is None or trainer.total_training_steps is not None else rows // size,
        steps=trainer.total_training_steps,
        checkpoint={"model": checkpoint_bytes(engine, config.checkpoint.save_contents)},
        # The oldest goes when the next is complete.
        kept=None if trainer.max_ckpt_to_keep is None else int(trainer.max_ckpt_to_keep) + 1,
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
    rows, absent = count_rows(config.data["files"], split="train")
    rows, size = known.rows or rows, int(optim.batch_size * optim.accumulation * known.devices)
    return _of_rows(
        config,
        known,
        engine,
        absent,
        {"devices": known.devices, "rows": rows, "rows per step": size, "epochs": optim.epochs},
        None if rows is None else -(-rows // size),
        steps=None,
        checkpoint={"model": checkpoint_bytes(engine, ["model", "optimizer"])},
        # keep_checkpoints, the best, and the finished model.
        kept=int(trainer.keep_checkpoints) + 1,
        levers=lambda part, waiting: {
            "a smaller optim.batch_size (BATCH)": part.activations,
            "a smaller model": part.optimizer,
        },
    )


def _of_rows(
    config: DictConfig,
    known: Known,
    engine: Engine,
    absent: list[str],
    facts: dict[str, Any],
    batches: int | None,
    steps: int | None,
    **more: Any,
) -> Run:
    """A run of one model over rows.

    Args:
        config, known: of the run.
        engine: its model.
        absent: files of the training data that are not here.
        facts: ``devices``, ``rows`` (None if unknown), ``rows per step`` and ``epochs``.
        batches: of an epoch; None where that is unknown or the configuration says the ``steps``.
        more: the other arguments of :class:`Run`.
    """
    rows, size, longest = facts["rows"], facts["rows per step"], int(config.data.max_length)
    length = min(known.mean_tokens or longest, longest)
    at_most = f"{longest:,} at most (MEAN_TOKENS for their mean)"
    few = f"{rows} rows are fewer than the {size} of a step, so that there would be none"
    return Run(
        facts=facts
        | {
            "rows": "unknown (no data here; ROWS)" if rows is None else rows,
            "tokens per row": at_most if known.mean_tokens is None else length,
            "tokens per micro-batch and device": engine.tokens,
            "parameters": engine.shape.weights,
            "trained parameters": engine.trained,
        },
        engines={engine.name: engine},
        parts=[Part("update", engine.name, training_passes(engine.recompute, bool(engine.adapter)))],
        sequences=size,
        length=length,
        share_of_length=1.0,
        devices=facts["devices"],
        cpu=config.trainer.device == "cpu",
        device_bytes=known.device_bytes,
        steps=steps if batches is None else int(batches * facts["epochs"]),
        warnings=[few] if batches == 0 else [],
        not_here=[f"data: {name} does not exist" for name in absent],
        **more,
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
    tables = [pq.ParquetFile(Path(name).expanduser()) for name in names]
    if split is None:
        return sum(table.metadata.num_rows for table in tables), []
    return sum(table.read(["split"])["split"].to_pylist().count(split) for table in tables), []


def read_offline(config: DictConfig, known: Known) -> Run:
    """A resolved configuration of ``prime_ext.offline_prm``; validation is not in the plan.

    Raises:
        PlanError: a model cannot be read, or the engine is none of FSDP's.
        SettingsError: see its message.
    """
    values: Any = OmegaConf.to_container(config)
    settings = OfflineSettings.from_mapping(values)
    data, cpu, longest = settings.data, settings.trainer.device == "cpu", settings.data.max_length
    read = partial(read_engine, batches=config.batching, devices=known.devices, cpu=cpu, longest=longest)
    trained, model = read("PRM", "model", config.model, config.engine), config.model.copy()
    OmegaConf.update(model, "path", config.prm.reference_path)
    reference = frozen(read("reference", "prm.reference_path", model, config.engine), cpu)
    engines = {"PRM": trained, "reference": reference}
    # As the trainer: a loss may need scores before the update, or log-ratios of mismatched pairs, of both models.
    needs_scores = not settings.prm.by_step and PRM_LOSSES[settings.prm.loss].needs_scores
    parts = [Part("reference", "reference", Passes().times(2 if needs_scores else 1), of_prm=True)]
    if needs_scores:
        parts.append(Part("scores before the update", "PRM", Passes(), of_prm=True))
    parts.append(Part("update", "PRM", training_passes(trained.recompute), of_prm=True))
    steps = None
    if known.prompts is not None:
        prompts = round(known.prompts * (1 - data.val_fraction))
        steps = settings.trainer.epochs * max(1, prompts // data.prompts_per_step)
    sequences = data.prompts_per_step * known.responses
    return Run(
        facts={
            "device": "cpu" if cpu else "cuda",
            "devices": known.devices,
            "loss": settings.prm.loss,
            "responses per step": sequences,
            "tokens per step at most": sequences * longest,
            "steps": "unknown; give --prompts" if steps is None else steps,
            "tokens per micro-batch and device": {engine.name: engine.tokens for engine in engines.values()},
            "parameters": {engine.name: engine.shape.weights for engine in engines.values()},
        },
        engines=engines,
        parts=parts,
        sequences=sequences,
        length=longest,
        share_of_length=min(known.mean_tokens or longest, longest) / longest,
        devices=known.devices,
        cpu=cpu,
        steps=steps,
        checkpoint={"PRM": checkpoint_bytes(trained, config.checkpoint.save_contents)},
        # The oldest goes when the next is complete.
        kept=settings.trainer.keep_checkpoints + 1 if settings.trainer.save_freq else 1,
        levers=lambda part, waiting: {
            "model.use_fused_kernels=true": part.logits,
            "a smaller batching.max_token_len_per_gpu, down to data.max_length": part.activations,
            "more devices": part.weights + part.gradients + part.optimizer,
        },
        device_bytes=known.device_bytes,
    )
