# SPDX-License-Identifier: Apache-2.0
"""verl's FSDP2 engines, registered for the device ``cpu``.

verl 0.9.1 registers them for cuda and npu. On the CPU they work as they are, except that engines
which only run the forward pass ask torch for pinned memory, which needs an accelerator.
"""

import torch
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import (
    FSDPEngine,
    FSDPEngineWithLMHead,
    FSDPEngineWithValueHead,
)


class _CPUEngineMixin(FSDPEngine):
    """Mixin before verl's FSDP engines. Raises ValueError: FSDP1 or ``offload_policy`` is set."""

    def __init__(self, model_config, engine_config, *args, **kwargs) -> None:
        if engine_config.strategy == "fsdp":
            raise ValueError(
                "strategy=fsdp (FSDP1) does not run on the CPU; set strategy=fsdp2 for every model."
            )
        if engine_config.offload_policy:
            raise ValueError(
                "offload_policy=True needs an accelerator; on the CPU set offload_policy=False."
            )
        super().__init__(model_config, engine_config, *args, **kwargs)
        # The weights are in host memory anyway: moving them there and back would only copy them.
        self._is_offload_param = False
        self._is_offload_optimizer = False

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        # With forward_only, verl requests pinned host memory while it shards a module.
        forward_only = self.engine_config.forward_only
        self.engine_config.forward_only = False
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config.forward_only = forward_only


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CPUEngineWithLMHead(_CPUEngineMixin, FSDPEngineWithLMHead):
    """Causal language model on the CPU."""


@EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cpu")
class CPUEngineWithValueHead(_CPUEngineMixin, FSDPEngineWithValueHead):
    """Value model (critic) on the CPU."""
