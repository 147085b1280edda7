# SPDX-License-Identifier: Apache-2.0
"""The engines of one worker process by role, and averages of their weights."""

import torch
from verl.utils.device import get_torch_device
from verl.workers.engine import BaseEngine

from prime_ext.algorithms.distillation import update_average

_ENGINES: dict[str, BaseEngine] = {}


def register_engine(role: str, engine: BaseEngine) -> None:
    """Register this process's engine of a role: policy, PRM, reference or average."""
    _ENGINES[role] = engine


def get_engine(role: str) -> BaseEngine:
    """Return the engine of a role. Raises RuntimeError when this process has none."""
    if role not in _ENGINES:
        raise RuntimeError(
            f"this process has no engine of the role {role!r}; it has {sorted(_ENGINES) or 'none'}"
        )
    return _ENGINES[role]


@torch.no_grad()
def average_weights(source: BaseEngine, target: BaseEngine, decay: float) -> None:
    """Set target = decay * target + (1 - decay) * source by shards; decay 0 copies the source.

    Both are FSDP engines of one architecture and sharding, of any dtype and device. Raises
    RuntimeError, and changes nothing, where names or shapes of the shards differ.
    """
    theirs, ours = (dict(engine.module.named_parameters()) for engine in (source, target))
    if theirs.keys() != ours.keys():
        odd = sorted(theirs.keys() ^ ours.keys())[0]
        raise RuntimeError(
            f"the models are not of the same architecture: only one of them has {odd}"
        )
    pairs = {name: (_shard(parameter), _shard(theirs[name])) for name, parameter in ours.items()}
    for name, (old, new) in pairs.items():
        if new.shape != old.shape:
            raise RuntimeError(
                f"shards of {name} differ: {tuple(new.shape)} against {tuple(old.shape)}"
            )
    # verl moves weights to the host without waiting; reading them there would not wait either.
    get_torch_device().synchronize()
    if decay:
        update_average(
            [old for old, _ in pairs.values()], [new for _, new in pairs.values()], decay
        )
        return
    for old, new in pairs.values():
        old.copy_(new)


def _shard(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter.data
