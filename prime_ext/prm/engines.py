# SPDX-License-Identifier: Apache-2.0
"""The engines that live in one worker process, by role, and the copy of weights between two of them."""

from typing import Any

import torch
from verl.utils.device import get_torch_device

from prime_ext.algorithms.distillation import update_average

_ENGINES: dict[str, Any] = {}


def register_engine(role: str, engine: Any) -> None:
    """Make an engine of this process known under its role: ``policy``, ``prm`` or ``reference``."""
    _ENGINES[role] = engine


def engine_of(role: str) -> Any:
    """The engine of a role. Raises RuntimeError when this process has none."""
    if role not in _ENGINES:
        raise RuntimeError(f"this process has no engine of the role {role!r}; it has {sorted(_ENGINES) or 'none'}")
    return _ENGINES[role]


@torch.no_grad()
def copy_weights(source: Any, target: Any) -> int:
    """Copy the parameters of one FSDP engine to another of the same architecture and sharding, shard by shard.

    Dtypes and devices may differ (a reference in bfloat16, offloaded weights). Returns the number of parameters of this
    rank that were copied.

    Raises:
        RuntimeError: names or shapes of the shards differ; nothing has been copied then.
    """
    pairs = _shards(source, target)
    for new, old in pairs:
        old.copy_(new)
    return sum(old.numel() for _, old in pairs)


def average_weights(source: Any, target: Any, decay: float) -> None:
    """target <- decay * target + (1 - decay) * source for the weights of two engines, see :func:`copy_weights`."""
    pairs = _shards(source, target)
    update_average([old for _, old in pairs], [new for new, _ in pairs], decay)


def _shards(source: Any, target: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    theirs = dict(source.module.named_parameters())
    ours = dict(target.module.named_parameters())
    if theirs.keys() != ours.keys():
        odd = sorted(theirs.keys() ^ ours.keys())[0]
        raise RuntimeError(f"the models are not of the same architecture: only one of them has {odd}")
    for name, parameter in ours.items():
        new, old = _shard(theirs[name]), _shard(parameter)
        if new.shape != old.shape:
            raise RuntimeError(f"shards of {name} differ: {tuple(new.shape)} against {tuple(old.shape)}")
    # verl moves weights to the host without waiting; reading them there would not wait either.
    get_torch_device().synchronize()
    return [(_shard(theirs[name]), _shard(parameter)) for name, parameter in ours.items()]


def _shard(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter.data
