# SPDX-License-Identifier: Apache-2.0
"""FSDP1 over gloo, for tests alone: verl's own engine, where CPU mode refuses it.

Torch stops FSDP1 on a CPU at two places only: it checks that the module can be broadcast, which
gloo can, and it pins the memory of a model that is gathered from the host. Without these, verl's
``strategy: fsdp`` runs as on accelerators.
"""

import torch
from torch.distributed.fsdp import _init_utils
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead


def allow_fsdp1() -> None:
    """Allow FSDP1 in this process, after ``prime_ext.verl_adapter.cpu.install()``."""
    _init_utils._check_module_states_for_sync_module_states = lambda module_states: None
    torch.Tensor.pin_memory = lambda tensor, *device: tensor
    for kind, engine in (
        ("language_model", FSDPEngineWithLMHead),
        ("value_model", FSDPEngineWithValueHead),
    ):
        EngineRegistry._engines[kind]["fsdp"]["cpu"] = engine
