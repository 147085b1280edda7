# SPDX-License-Identifier: Apache-2.0
"""A model and how it is trained, read from verl's sections of a configuration."""

from dataclasses import replace
from typing import Any

from prime_ext.config.engines import DTYPE_BYTES
from prime_ext.plan.memory import Engine
from prime_ext.plan.model_shape import PlanError, adapter_weights, read_shape

STRATEGIES = ("fsdp", "fsdp2")


def read_engine(
    name: str, key: str, model: Any, engine: Any, batches: Any, *, devices: int, cpu: bool, longest: int
) -> Engine:
    """What the configuration says about one model, as if it were trained.

    Args:
        name: in the table.
        key: of the model's section, for messages; or of its path, if it ends in that.
        model, engine: verl's sections.
        batches: the section that says how mini-batches are cut.
        devices: of the run.
        cpu: whether these are no accelerators.
        longest: tokens of a sequence at most.

    Raises:
        PlanError: the model cannot be read, or the engine is none of FSDP's.
    """
    strategy = engine.get("strategy") or batches.get("strategy")
    if strategy not in STRATEGIES:
        raise PlanError(f"the plan knows the strategies fsdp and fsdp2, not {strategy} of {name}")
    trust, rank = bool(model.trust_remote_code), lora_rank(model)
    shape = read_shape(key if key.endswith("path") else f"{key}.path", str(model.path), trust)
    adapter = adapter_weights(key, shape, rank, model.target_modules, trust) if rank else 0
    # verl's mixed precision is bf16 unless told otherwise.
    precision = (engine.get("mixed_precision") or {}).get("param_dtype", "bf16")
    group = int(engine.get("fsdp_size", -1))
    return Engine(
        name=name,
        shape=shape,
        trained=adapter or shape.weights,
        adapter=adapter,
        weight_bytes=DTYPE_BYTES[engine.model_dtype or "fp32"],
        compute_bytes=DTYPE_BYTES[precision],
        shards=min(group, devices) if group >= 0 else devices,
        tokens=_micro_batch_tokens(batches, longest, engine.get("ulysses_sequence_parallel_size", 1) or 1),
        recompute=bool(model.enable_gradient_checkpointing),
        backend=(model.get("fused_kernel_options") or {}).get("impl_backend") if model.use_fused_kernels else None,
        # On the CPU the weights are in host memory anyway, and prime_ext leaves them there.
        param_offload=bool(engine.param_offload) and not cpu,
        optimizer_offload=bool(engine.optimizer_offload) and not cpu,
        stays_on_host=bool(engine.get("offload_policy")) and not cpu,
    )


def lora_rank(model: Any) -> int:
    """Rank of the model's adapter, 0 without one."""
    return int(model.get("lora_rank", 0) or 0)


def with_forward(engine: Engine, batches: Any, tokens: int | None) -> Engine:
    """The same, with a token budget of its own for passes without gradients."""
    return replace(engine, forward_tokens=int(tokens)) if batches.use_dynamic_bsz and tokens else engine


def frozen(engine: Engine, cpu: bool) -> Engine:
    """A model of its own that is never trained; on accelerators verl keeps its weights on the host."""
    return replace(
        engine,
        trained=0,
        tokens=engine.forward_tokens or engine.tokens,
        recompute=False,
        param_offload=False,
        optimizer_offload=False,
        stays_on_host=not cpu,
    )


def _micro_batch_tokens(batches: Any, longest: int, parallel: int) -> int:
    """Tokens of the largest micro-batch on one device, with sequences of full length."""
    if batches.use_dynamic_bsz:
        # The first one is a critic's, the last one a PRM's.
        keys = ("ppo_infer_max_token_len_per_gpu", "ppo_max_token_len_per_gpu", "max_token_len_per_gpu")
        budget = next(batches[key] for key in keys if batches.get(key))
        return max(int(budget), -(-longest // parallel))
    rows = batches.get("ppo_micro_batch_size_per_gpu") or batches.get("micro_batch_size_per_gpu")
    if not rows:
        raise PlanError("neither use_dynamic_bsz=true nor a micro-batch size per GPU is set")
    return -(-int(rows) * longest // parallel)
