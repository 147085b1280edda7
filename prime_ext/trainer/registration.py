# SPDX-License-Identifier: Apache-2.0
"""The trainers that ``trainer.v1.trainer_mode`` can name."""

import logging
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import ray
import torch
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import trainer_separate_async
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from prime_ext.trainer.prime_trainer import PrimeTrainerMixin
from prime_ext.trainer.pspo_trainer import PSPOTrainerMixin


def copied(saved: Any, in_use: set[int]) -> Any:
    """``saved`` with every tensor that lies in memory of ``in_use`` (addresses of storages) replaced by a copy."""
    if isinstance(saved, torch.Tensor):
        return saved.clone() if saved.untyped_storage().data_ptr() in in_use else saved
    if isinstance(saved, dict):
        return {key: copied(value, in_use) for key, value in saved.items()}
    # Not DTensorSpec and the like, which are dataclasses.
    if type(saved) in (list, tuple):
        return type(saved)(copied(value, in_use) for value in saved)
    return saved


def storages(module: torch.nn.Module) -> set[int]:
    """Addresses of the memory that holds the module's parameters, or this rank's shards of them."""
    local = [getattr(parameter, "_local_tensor", parameter) for parameter in module.parameters()]
    return {tensor.untyped_storage().data_ptr() for tensor in local}


class SnapshotActorWorker(DetachActorWorker):
    """verl takes a snapshot with ``tensor.cpu()``, which copies nothing when the weights are in host memory already: on
    the CPU, and with ``param_offload``. Restoring the policy of the step's start would then overwrite the "saved"
    current one, and the updates of all mini-batches but the last would be lost.
    """

    @property
    def copy_handler(self) -> Callable[[torch.nn.Module], Any]:
        take = super().copy_handler
        return lambda module: copied(take(module), storages(module))


class _WithoutFlush(logging.LoggerAdapter):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {name: value for name, value in kwargs.items() if name != "flush"}


@contextmanager
def _loggable(module: ModuleType) -> Iterator[None]:
    """verl 0.9.1 passes print's argument ``flush`` to a logger when ``hybrid_engine=false``, which ends the run."""
    logger = module.logger
    module.logger = _WithoutFlush(logger, {})  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.logger = logger  # type: ignore[attr-defined]


@register_trainer("prime_sync")
class PrimeTrainerSync(PrimeTrainerMixin, PPOTrainerSync):
    """PRIME on verl's synchronous trainer: rollouts and training take turns on the same devices."""

    base_mode = "sync"


@register_trainer("prime_colocate_async")
class PrimeTrainerColocateAsync(PrimeTrainerMixin, PPOTrainerColocateAsync):
    """PRIME on the same devices in turns; unfinished rollouts are interrupted, and continued by the next policy."""

    base_mode = "colocate_async"


class _SeparateAsync(PPOTrainerSeparateAsync):
    """verl's trainer with standalone rollout servers, mended where 0.9.1 breaks, and with snapshots on a CPU."""

    def _setup(self) -> None:
        if self._enable_hybrid_replicas:
            super()._setup()
            return
        with _loggable(trainer_separate_async):
            super()._setup()

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(SnapshotActorWorker)


@register_trainer("prime_separate_async")
class PrimeTrainerSeparateAsync(PrimeTrainerMixin, _SeparateAsync):
    """PRIME with rollout servers on devices of their own, which generate while policy and PRM are trained."""

    base_mode = "separate_async"


@register_trainer("pspo_sync")
class PSPOTrainerSync(PSPOTrainerMixin, PPOTrainerSync):
    """PSPO-WRS on verl's synchronous trainer."""

    base_mode = "sync"


@register_trainer("pspo_colocate_async")
class PSPOTrainerColocateAsync(PSPOTrainerMixin, PPOTrainerColocateAsync):
    """PSPO-WRS on the same devices in turns; unfinished rollouts are continued by the next policy."""

    base_mode = "colocate_async"


@register_trainer("pspo_separate_async")
class PSPOTrainerSeparateAsync(PSPOTrainerMixin, _SeparateAsync):
    """PSPO-WRS with rollout servers on devices of their own, which generate during training."""

    base_mode = "separate_async"
