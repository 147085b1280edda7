# SPDX-License-Identifier: Apache-2.0
"""verl's actor worker of the separate mode, whose snapshots of the policy are copies wherever the policy is kept."""

from collections.abc import Callable
from typing import Any

import torch
from verl.experimental.separation.engine_workers import DetachActorWorker


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
