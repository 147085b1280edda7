# SPDX-License-Identifier: Apache-2.0
"""Supervised runs as the plan sees them: verl's SFT trainer, and the training of a step reward model."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.checks import SettingsError, number, whole_number
from prime_ext.config.compose import SFT_CONFIG, compose_config
from prime_ext.plan.engines import read_engine
from prime_ext.plan.estimate import checkpoint_parts
from prime_ext.plan.memory import Engine
from prime_ext.plan.model_shape import read_classifier_shape
from prime_ext.step_rm.labels import LABELS

STEP_RM_CONFIG = "step_rm"
# Read by verl's dataset, but not in its file; they are added with a plus.
ADDED_DATA_KEYS = ("seed", "shuffle", "image_key", "video_key", "image_patch_size")


@dataclass(frozen=True)
class SupervisedRun:
    """A supervised run.

    Attributes:
        engine: the model.
        replicated: whether every device holds all of it, with a copy of the gradients to exchange; else FSDP shards it.
        devices: accelerators.
        rows_per_step: of an optimiser step, on all devices.
        longest: tokens of a row at most.
        epochs: passes over the rows.
        steps: optimiser steps, where the configuration names them.
        drops_rest: whether the last, incomplete batch of an epoch is left out.
        checkpoint_bytes: of one checkpoint.
        kept: checkpoints on disk; None if all are kept.
        files: of the data.
        split: the split of the rows in those files that are trained on; None for all rows.
        cpu: whether there is no accelerator.
    """

    engine: Engine
    replicated: bool
    devices: int
    rows_per_step: int
    longest: int
    epochs: float
    steps: int | None
    drops_rest: bool
    checkpoint_bytes: float
    kept: int | None
    files: tuple[str, ...]
    split: str | None
    cpu: bool


# ---- verl's SFT trainer --------------------------------------------------------------------------------------------


def check_sft(config: DictConfig) -> list[str]:
    """What verl's SFT trainer would refuse, ignore or round off. Returns one line per problem."""
    problems = [*_sft_numbers(config), *_sft_keys(config)]
    return problems or list(_sft_batches(config))


def _sft_numbers(config: DictConfig) -> Iterable[str]:
    whole = {
        "data.train_batch_size": 1,
        "data.max_length": 1,
        "data.max_token_len_per_gpu": 1,
        "data.micro_batch_size_per_gpu": 1,
        "trainer.total_epochs": 1,
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "engine.ulysses_sequence_parallel_size": 1,
        "model.lora_rank": 0,
    }
    for key, low in whole.items():
        try:
            whole_number(key, OmegaConf.select(config, key), low)
        except SettingsError as error:
            yield str(error)
    for key, high, open_low in (("optim.lr", float("inf"), True), ("optim.lr_warmup_steps_ratio", 1.0, False)):
        try:
            number(key, OmegaConf.select(config, key), 0.0, high, open_low)
        except SettingsError as error:
            yield str(error)


def _sft_keys(config: DictConfig) -> Iterable[str]:
    """Keys that were added with a plus, and values that verl's own classes refuse."""
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import HFModelConfig

    # Those build nothing but themselves; the model's would load its tokenizer.
    for section in ("engine", "optim", "checkpoint"):
        try:
            omega_conf_to_dataclass(config[section])
        except Exception as error:
            # Hydra names the class and the place before the cause.
            cause = error.__cause__ or error
            yield f"{section}: verl refuses it ({(str(cause).splitlines() or [type(cause).__name__])[0]})"
    base = compose_config(SFT_CONFIG, [])
    known = {name: set(section) if OmegaConf.is_dict(section) else set() for name, section in base.items()}
    known["model"] |= {field.name for field in fields(HFModelConfig)}
    known["data"] |= set(ADDED_DATA_KEYS)
    for name in config:
        if name not in known:
            yield f"unknown section {name}; verl's SFT trainer has {', '.join(known)}"
        elif name in ("data", "model", "trainer"):
            yield from (f"unknown key {name}.{key}" for key in config[name] if key not in known[name])


def _sft_batches(config: DictConfig) -> Iterable[str]:
    data, engine = config.data, config.engine
    devices, parallel = _sft_devices(config), engine.ulysses_sequence_parallel_size
    if devices % parallel:
        yield f"engine.ulysses_sequence_parallel_size={parallel} does not divide the {devices} devices"
        return
    ranks, batch = devices // parallel, data.train_batch_size
    if batch % ranks:
        yield (
            f"data.train_batch_size={batch} is no multiple of the {ranks} groups of devices that share a batch; verl "
            f"would train on {batch // ranks * ranks} rows per step"
        )
    elif not data.use_dynamic_bsz and (batch // ranks) % data.micro_batch_size_per_gpu:
        yield (
            f"data.micro_batch_size_per_gpu={data.micro_batch_size_per_gpu} does not divide the {batch // ranks} rows "
            f"of a device"
        )
    if data.use_dynamic_bsz and data.max_token_len_per_gpu * parallel < data.max_length:
        yield (
            f"data.max_token_len_per_gpu={data.max_token_len_per_gpu} times "
            f"engine.ulysses_sequence_parallel_size={parallel} is less than data.max_length={data.max_length}, so that "
            f"a long conversation fits into no micro-batch"
        )
    if engine.get("fsdp_size", -1) > 0 and devices % engine.fsdp_size:
        yield f"engine.fsdp_size={engine.fsdp_size} does not divide the {devices} devices"


def _sft_devices(config: DictConfig) -> int:
    return int(config.trainer.n_gpus_per_node * config.trainer.nnodes)


def read_sft(config: DictConfig) -> SupervisedRun:
    """A run of verl's SFT trainer. Raises ``PlanError``."""
    data, trainer = config.data, config.trainer
    view = OmegaConf.create(
        {
            "trainer": {"device": trainer.device, "n_gpus_per_node": trainer.n_gpus_per_node, "nnodes": trainer.nnodes},
            # Question and answer share one limit here.
            "data": {"max_prompt_length": 0, "max_response_length": data.max_length},
        }
    )
    engine = read_engine(view, "model", "model", config.model, config.engine, data)
    keep = trainer.max_ckpt_to_keep
    return SupervisedRun(
        engine=engine,
        replicated=False,
        devices=_sft_devices(config),
        rows_per_step=int(data.train_batch_size),
        longest=int(data.max_length),
        epochs=trainer.total_epochs,
        steps=trainer.total_training_steps,
        drops_rest=True,
        checkpoint_bytes=float(sum(checkpoint_parts(engine, config.checkpoint.save_contents))),
        # The oldest goes when the next is complete.
        kept=None if keep is None else int(keep) + 1,
        files=_names(data.train_files),
        split=None,
        cpu=trainer.device == "cpu",
    )


# ---- step reward model ---------------------------------------------------------------------------------------------


def check_step_rm(config: DictConfig) -> list[str]:
    """What the training of a step reward model would refuse. Returns one line per problem."""
    from prime_ext.step_rm.train.settings import StepRMSettings

    values: Any = OmegaConf.to_container(config)
    try:
        StepRMSettings.from_mapping(values)
    except SettingsError as error:
        return [str(error)]
    return []


def read_step_rm(config: DictConfig, devices: int) -> SupervisedRun:
    """The training of a step reward model, by transformers' Trainer on every device. Raises ``PlanError``."""
    model, data, optim, trainer = config.model, config.data, config.optim, config.trainer
    shape = read_classifier_shape("model.path", str(model.path), len(LABELS), bool(model.trust_remote_code))
    engine = Engine(
        name="model",
        shape=shape,
        trained=shape.weights,
        adapter=0,
        weight_bytes=4,
        compute_bytes=2 if trainer.dtype == "bfloat16" else 4,
        shards=1,
        tokens=int(optim.batch_size * data.max_length),
        recompute=False,
        backend=None,
        param_offload=False,
        optimizer_offload=False,
        stays_on_host=False,
    )
    return SupervisedRun(
        engine=engine,
        replicated=True,
        devices=devices,
        rows_per_step=int(optim.batch_size * optim.accumulation * devices),
        longest=int(data.max_length),
        epochs=optim.epochs,
        steps=None,
        drops_rest=False,
        checkpoint_bytes=float(sum(checkpoint_parts(engine, ("model", "optimizer")))),
        # keep_checkpoints, the best, and the finished model.
        kept=int(trainer.keep_checkpoints) + 1,
        files=_names(data["files"]),
        split="train",
        cpu=trainer.device == "cpu",
    )


def _names(files: Any) -> tuple[str, ...]:
    return (files,) if isinstance(files, str) else tuple(str(name) for name in files or ())
