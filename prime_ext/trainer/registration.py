# SPDX-License-Identifier: Apache-2.0
"""The trainers that ``trainer.v1.trainer_mode`` can name: PRIME and PSPO-WRS in each of verl's modes."""

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
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.device import get_torch_device

from prime_ext.trainer.prime_trainer import PrimeTrainerMixin
from prime_ext.trainer.pspo_trainer import PSPOTrainerMixin

# Seconds in which trainers and rollout servers have to open their group.
MEETING_SECONDS = 600


def copy_shared_tensors(saved: Any, module: torch.nn.Module) -> Any:
    """Replace every tensor in ``saved`` that lies in the memory of the module's parameters, or their shards."""
    local = [getattr(parameter, "_local_tensor", parameter) for parameter in module.parameters()]
    in_use = {tensor.untyped_storage().data_ptr() for tensor in local}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone() if tensor.untyped_storage().data_ptr() in in_use else tensor

    return tree_map_only(torch.Tensor, copy, saved)


class SnapshotActorWorker(DetachActorWorker):
    """verl takes a snapshot with ``tensor.cpu()``, which copies nothing when the weights are in host memory already: on
    the CPU, and with ``param_offload``. Restoring the policy of the step's start would then overwrite the "saved"
    current one, and the updates of all mini-batches but the last would be lost.
    """

    @property
    def copy_handler(self) -> Callable[[torch.nn.Module], Any]:
        take = super().copy_handler

        def copy(module: torch.nn.Module) -> Any:
            # verl moves offloaded weights to the host without waiting; copying them there would not wait either.
            get_torch_device().synchronize()
            return copy_shared_tensors(take(module), module)

        return copy


class _WithoutFlush(logging.LoggerAdapter):
    """verl 0.9.1 passes print's argument ``flush`` to a logger when ``hybrid_engine=false``, which ends the run."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {name: value for name, value in kwargs.items() if name != "flush"}


def _meet(build: Callable[..., None], *arguments: Any) -> None:
    """Join trainers and servers in the group through which weights go; verl would wait for it without end."""
    joined: Future[None] = Future()

    def run() -> None:
        try:
            joined.set_result(build(*arguments))
        except Exception as error:
            joined.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([joined], MEETING_SECONDS).done:
        raise RuntimeError(
            f"trainers and rollout servers have not met within {MEETING_SECONDS} s to exchange weights (NCCL, "
            "actor_rollout_ref.rollout.checkpoint_engine); start again, and see NCCL_DEBUG=INFO if it comes back"
        )
    joined.result()


class _SeparateAsync(PPOTrainerSeparateAsync):
    """verl's trainer with standalone rollout servers, mended where 0.9.1 breaks, and with snapshots on a CPU."""

    def _setup(self) -> None:
        logger = trainer_separate_async.logger
        trainer_separate_async.logger = _WithoutFlush(logger, {})  # type: ignore[assignment]
        try:
            super()._setup()
        finally:
            trainer_separate_async.logger = logger

        manager = self.standalone_checkpoint_manager
        manager.build_process_group = partial(_meet, manager.build_process_group)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(SnapshotActorWorker)


# Of verl's modes, by its names. Rollouts and training take turns on the same devices; the same, and unfinished rollouts
# are interrupted, to be continued by the next policy; rollout servers on devices of their own generate meanwhile.
MODES = {
    "sync": PPOTrainerSync,
    "colocate_async": PPOTrainerColocateAsync,
    "separate_async": _SeparateAsync,
}
for _mode, _verls in MODES.items():
    for _name, _mixin in (("prime", PrimeTrainerMixin), ("pspo", PSPOTrainerMixin)):
        _class = type(f"{_name}_{_mode}", (_mixin, _verls), {"base_mode": _mode, "__module__": __name__})
        register_trainer(_class.__name__)(_class)
