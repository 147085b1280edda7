# SPDX-License-Identifier: Apache-2.0
"""``verl.trainer.ppo.v1.trainer_separate_async``, repaired where 0.9.1 fails (for_upstream.md)."""

import logging
import threading
from collections.abc import Callable, MutableMapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import ray
import torch
from torch.utils._pytree import tree_map_only
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import trainer_separate_async
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.utils.device import get_torch_device

# Seconds in which trainers and rollout servers must open their process group.
MEETING_SECONDS = 600


class SnapshotActorWorker(DetachActorWorker):
    """Worker whose snapshots copy weights that are already in host memory.

    verl's ``tensor.cpu()`` copies nothing there: on the CPU, and with ``param_offload``. Restoring
    the policy of the step's start would then overwrite the "saved" current one, and lose the
    updates of all mini-batches but the last.
    """

    @property
    def copy_handler(self) -> Callable[[torch.nn.Module], Any]:
        take = super().copy_handler

        def copy(module: torch.nn.Module) -> Any:
            # verl moves offloaded weights to the host without waiting; copying them there would not
            # wait either.
            get_torch_device().synchronize()
            shards = [
                getattr(parameter, "_local_tensor", parameter) for parameter in module.parameters()
            ]
            in_use = {shard.untyped_storage().data_ptr() for shard in shards}

            def unshare(saved: torch.Tensor) -> torch.Tensor:
                return saved.clone() if saved.untyped_storage().data_ptr() in in_use else saved

            return tree_map_only(torch.Tensor, unshare, take(module))

        return copy


class _WithoutFlush(logging.LoggerAdapter):
    """Logger that drops ``flush``; with ``hybrid_engine=false`` verl 0.9.1 passes it and fails."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {name: value for name, value in kwargs.items() if name != "flush"}


def _join_group(build: Callable[..., Any], *arguments: Any) -> None:
    """Open the process group of trainers and servers, within a time limit that verl lacks."""
    joined: Future[Any] = Future()

    def run() -> None:
        try:
            build(*arguments)
            joined.set_result(None)
        except Exception as error:
            joined.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([joined], MEETING_SECONDS).done:
        raise RuntimeError(
            f"trainers and rollout servers have not met within {MEETING_SECONDS} s to exchange"
            " weights (NCCL, actor_rollout_ref.rollout.checkpoint_engine); start again, and see"
            " NCCL_DEBUG=INFO if it comes back"
        )
    joined.result()


class MendedSeparateAsync(PPOTrainerSeparateAsync):
    """verl's trainer with standalone rollout servers, and with snapshots on a CPU."""

    def _setup(self) -> None:
        trainer_separate_async.logger = _WithoutFlush(trainer_separate_async.logger, {})  # type: ignore[assignment]
        super()._setup()
        manager = self.standalone_checkpoint_manager
        manager.build_process_group = partial(_join_group, manager.build_process_group)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(SnapshotActorWorker)
