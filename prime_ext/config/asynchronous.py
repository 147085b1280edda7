# SPDX-License-Identifier: Apache-2.0
"""Trainers and their asynchronous modes: names, sizes that depend on them, and checks."""

from collections.abc import Iterable
from importlib.metadata import version

from omegaconf import DictConfig
from packaging.version import Version

# verl's modes; prime_ext's are named after the ones that they build on.
VERL_MODES = ("sync", "colocate_async", "separate_async")
PRIME_MODES = tuple(f"prime_{mode}" for mode in VERL_MODES)
_SYNC_STEP = "trainer.v1.separate_async.parameter_sync_step"


def get_base_mode(config: DictConfig) -> str:
    """Return the mode of verl that the trainer builds on, a section of ``trainer.v1``."""
    return str(config.trainer.v1.trainer_mode).removeprefix("prime_")


def prompts_per_update(config: DictConfig) -> int:
    """Return the prompts of a trainer's update: a batch or, in the separate mode, a share of it."""
    if get_base_mode(config) != "separate_async":
        return config.data.train_batch_size
    return max(
        1, config.data.train_batch_size // config.trainer.v1.separate_async.parameter_sync_step
    )


def rollout_ranks(config: DictConfig) -> int:
    """Return the devices of the standalone rollout servers; 0 where there are none."""
    if get_base_mode(config) != "separate_async":
        return 0
    return (
        config.actor_rollout_ref.rollout.nnodes * config.actor_rollout_ref.rollout.n_gpus_per_node
    )


def trainers_generate(config: DictConfig) -> bool:
    """Return whether rollout servers also run on the trainer's devices.

    verl 0.9.1 puts them there in the separate mode unless ``hybrid_engine=false``, later ones only
    to switch to them.
    """
    if get_base_mode(config) != "separate_async":
        return True
    hybrid = config.actor_rollout_ref.get("hybrid_engine", True)
    switches = config.trainer.v1.separate_async.hybrid_rollout.enable_switch
    return bool(hybrid and (switches or Version(version("verl")) <= Version("0.9.1")))


def check_async(config: DictConfig) -> Iterable[str]:
    """Check the sizes and engines of the separate mode; the other modes need no checks."""
    if get_base_mode(config) != "separate_async":
        return
    mode = config.trainer.v1.trainer_mode
    separate = config.trainer.v1.separate_async
    key = "actor_rollout_ref"
    policy = config.actor_rollout_ref
    rollout = policy.rollout
    prompts = config.data.train_batch_size
    sync_step = separate.parameter_sync_step
    expected = sync_step * policy.actor.ppo_mini_batch_size
    if prompts != expected:
        product = f"{_SYNC_STEP}={sync_step} times {key}.actor.ppo_mini_batch_size"
        yield f"data.train_batch_size={prompts} must be {expected}, which is {product}"
    if (servers := rollout_ranks(config)) < 1:
        yield (
            f"{key}.rollout.nnodes={rollout.nnodes} with n_gpus_per_node={rollout.n_gpus_per_node}:"
            " set both above 0"
        )
    replica = (
        rollout.tensor_model_parallel_size
        * rollout.data_parallel_size
        * rollout.pipeline_model_parallel_size
    )
    if servers % replica:
        yield (
            f"{key}.rollout has {servers} devices, not a multiple of the {replica} devices of a"
            " server"
        )
    if rollout.checkpoint_engine.backend == "naive":
        other = "tcp" if config.trainer.device == "cpu" else "nccl"
        yield (
            f"{key}.rollout.checkpoint_engine.backend=naive: {mode} needs one between devices; set"
            f" it to {other}"
        )
    if policy.actor.strategy == "megatron" and sync_step != 1:
        yield (
            f"{_SYNC_STEP}={sync_step} must be 1 with {key}.actor.strategy=megatron: snapshots are"
            " for FSDP engines"
        )
    if separate.hybrid_rollout.enable_switch and not policy.get("hybrid_engine", True):
        yield (
            "trainer.v1.separate_async.hybrid_rollout.enable_switch=true needs"
            f" {key}.hybrid_engine=true"
        )
