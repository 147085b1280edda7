# SPDX-License-Identifier: Apache-2.0
"""What verl's SFT trainer would refuse, ignore or round off."""

from collections.abc import Iterable
from dataclasses import fields

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.checks import Count, CountOrZero, Positive, Share, wrong_values
from prime_ext.config.compose import SFT_CONFIG, compose_config

# Read by verl's dataset, but not in its file; they are added with a plus.
ADDED_DATA_KEYS = ("seed", "shuffle", "image_key", "video_key", "image_patch_size")
NUMBERS = {
    "data.train_batch_size": Count,
    "data.max_length": Count,
    "data.max_token_len_per_gpu": Count,
    "data.micro_batch_size_per_gpu": Count,
    "trainer.total_epochs": Count,
    "trainer.n_gpus_per_node": Count,
    "trainer.nnodes": Count,
    "engine.ulysses_sequence_parallel_size": Count,
    "model.lora_rank": CountOrZero,
    "optim.lr": Positive,
    "optim.lr_warmup_steps_ratio": Share,
}


def check_sft(config: DictConfig) -> list[str]:
    """What verl's SFT trainer would refuse, ignore or round off. Returns one line per problem."""
    problems = [*wrong_values(config, NUMBERS), *_keys(config)]
    return problems or list(_batches(config))


def _keys(config: DictConfig) -> Iterable[str]:
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


def _batches(config: DictConfig) -> Iterable[str]:
    data, engine = config.data, config.engine
    devices = int(config.trainer.n_gpus_per_node * config.trainer.nnodes)
    parallel, batch, micro = engine.ulysses_sequence_parallel_size, data.train_batch_size, data.micro_batch_size_per_gpu
    size = f"engine.ulysses_sequence_parallel_size={parallel}"
    if devices % parallel:
        yield f"{size} does not divide the {devices} devices"
        return
    ranks = devices // parallel
    if batch % ranks:
        trained = f"verl would train on {batch // ranks * ranks} rows per step"
        yield f"data.train_batch_size={batch} is no multiple of the {ranks} groups of devices that share it; {trained}"
    elif not data.use_dynamic_bsz and (batch // ranks) % micro:
        yield f"data.micro_batch_size_per_gpu={micro} does not divide the {batch // ranks} rows of a device"
    if data.use_dynamic_bsz and data.max_token_len_per_gpu * parallel < data.max_length:
        tokens = f"data.max_token_len_per_gpu={data.max_token_len_per_gpu}"
        yield f"{tokens} times {size} is less than data.max_length={data.max_length}, of the longest conversation"
    if engine.get("fsdp_size", -1) > 0 and devices % engine.fsdp_size:
        yield f"engine.fsdp_size={engine.fsdp_size} does not divide the {devices} devices"
