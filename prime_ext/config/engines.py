# SPDX-License-Identifier: Apache-2.0
"""Choices for verl's engines: their names, and what a section says of its own."""

from omegaconf import DictConfig

CHUNKED = "chunked"
VERL_BACKENDS = ("torch", "triton", "liger")
# Values of fused_kernel_options.impl_backend.
BACKENDS = (CHUNKED, *VERL_BACKENDS)
CPU_BACKENDS = (CHUNKED, "torch")

DTYPE_BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "auto": 2}


def sequence_parallel_ranks(section: DictConfig) -> int:
    """Ranks that share a sequence: verl takes its deprecated key in the section before that of the engine.

    Args:
        section: of the policy, the reference or the PRM; Megatron's has no such engine.
    """
    key, engine = "ulysses_sequence_parallel_size", section.get("engine") or section.get("fsdp_config")
    own = section.get(key) or 1
    return own if own > 1 or engine is None else engine.get(key) or 1
