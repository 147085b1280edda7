# SPDX-License-Identifier: Apache-2.0
"""One engine as verl's sections of a configuration describe it, and its memory on one device.

Weights, gradients and optimizer states are exact. What a pass needs (gathered weights, activations, logits) is an
estimate from the sizes of the model; ``docs/how_to/cost.md`` says how far it is from measured runs.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from prime_ext.config.engines import CHUNKED, DTYPE_BYTES
from prime_ext.plan.model_shape import ModelShape, PlanError, adapter_weights, read_shape

STRATEGIES = ("fsdp", "fsdp2")
# Logits that exist at once, in matrices of (tokens, vocabulary): measured on the CPU in float32
# (tests/benchmarks/chunked_log_probs.py). In 16 bit: logits and gradient, and one copy in float32 for the softmax.
PLAIN_COPIES_FLOAT32 = 3.7
PLAIN_BYTES_16_BIT = 8
# Tokens per chunk, and float32 copies of a chunk.
CHUNKED_LOGITS = {CHUNKED: (256, 2), "torch": (512, 6)}
# Hidden-size vectors that a block keeps for its backward pass besides attention and feed-forward.
KEPT_WIDTHS = 8
ADAM_STATES = 2
FP32 = 4


@dataclass(frozen=True)
class Engine:
    """What the configuration says about one model.

    Attributes:
        name: in the table.
        shape: sizes of the model.
        trained: weights with gradient and optimizer states: all, those of an adapter or of the last layers, or 0.
        adapter: weights of the adapter, in addition to the model's.
        weight_bytes, compute_bytes: bytes of a weight at rest and in a pass.
        shards: devices that share the weights.
        tokens: of a micro-batch, on one device.
        recompute: whether only the inputs of the blocks are kept.
        backend: of fused log-probabilities; None for plain ones.
        param_offload, optimizer_offload: moved to the host between passes.
        stays_on_host: gathered from the host block by block, as verl does for models that are not trained.
        forward_tokens: of a pass without gradients; None for ``tokens``.
        trained_layers: decoder layers that a backward pass goes through; None for all.
    """

    name: str
    shape: ModelShape
    trained: int
    adapter: int
    weight_bytes: int
    compute_bytes: int
    shards: int
    tokens: int
    recompute: bool
    backend: str | None = None
    param_offload: bool = False
    optimizer_offload: bool = False
    stays_on_host: bool = False
    forward_tokens: int | None = None
    trained_layers: int | None = None

    @property
    def trained_share(self) -> float:
        """Share of the layers that a backward pass goes through."""
        return 1 if self.trained_layers is None else self.trained_layers / self.shape.layers


def read_engine(
    name: str, key: str, model: Any, engine: Any, batches: Any, forward: Any = None, *, run: Any, longest: int
) -> Engine:
    """Return what the configuration says about one model, as if it were trained.

    Args:
        name: in the table.
        key: of the model's section, for messages; or of its path.
        model, engine: verl's sections.
        batches: the section that says how mini-batches are cut.
        forward: tokens of a pass without gradients; None for those of a training pass.
        run: the section ``trainer``.
        longest: tokens of the longest sequence.

    Raises:
        PlanError: the model cannot be read, or the engine is not one of FSDP's.
    """
    strategy = engine.get("strategy") or batches.get("strategy")
    if strategy not in STRATEGIES:
        raise PlanError(f"the plan knows the strategies fsdp and fsdp2, not {strategy} of {name}")
    trust, rank = bool(model.trust_remote_code), int(model.get("lora_rank", 0) or 0)
    shape = read_shape(key if key.endswith("path") else f"{key}.path", str(model.path), trust)
    adapter = adapter_weights(key, shape, rank, model.target_modules, trust) if rank else 0
    devices, group = int(run.n_gpus_per_node * run.nnodes), int(engine.get("fsdp_size", -1))
    # On the CPU the weights are in host memory anyway, and prime_ext leaves them there.
    accelerator = run.device != "cpu"
    return Engine(
        name=name,
        shape=shape,
        trained=adapter or shape.weights,
        adapter=adapter,
        weight_bytes=DTYPE_BYTES[engine.model_dtype or "fp32"],
        # verl's mixed precision is bf16 by default.
        compute_bytes=DTYPE_BYTES[(engine.get("mixed_precision") or {}).get("param_dtype", "bf16")],
        shards=min(group, devices) if group >= 0 else devices,
        tokens=_micro_batch_tokens(batches, longest, engine.get("ulysses_sequence_parallel_size", 1) or 1),
        recompute=bool(model.enable_gradient_checkpointing),
        backend=(model.get("fused_kernel_options") or {}).get("impl_backend") if model.use_fused_kernels else None,
        param_offload=bool(engine.param_offload) and accelerator,
        optimizer_offload=bool(engine.optimizer_offload) and accelerator,
        stays_on_host=bool(engine.get("offload_policy")) and accelerator,
        forward_tokens=int(forward) if forward and batches.use_dynamic_bsz else None,
    )


def freeze(engine: Engine, cpu: bool) -> Engine:
    """Return the engine of a model that is never trained; on accelerators verl keeps its weights on the host."""
    tokens = engine.forward_tokens or engine.tokens
    only_forward = replace(engine, trained=0, tokens=tokens, forward_tokens=None, recompute=False)
    return replace(only_forward, param_offload=False, optimizer_offload=False, stays_on_host=not cpu)


def _micro_batch_tokens(batches: Any, longest: int, parallel: int) -> int:
    """Return the tokens of the largest micro-batch on one device, with sequences of full length."""
    if batches.use_dynamic_bsz:
        # The first one is a critic's, the last one a PRM's.
        keys = ("ppo_infer_max_token_len_per_gpu", "ppo_max_token_len_per_gpu", "max_token_len_per_gpu")
        budget = next(batches[key] for key in keys if batches.get(key))
        return max(int(budget), -(-longest // parallel))
    rows = batches.get("ppo_micro_batch_size_per_gpu") or batches.get("micro_batch_size_per_gpu")
    if not rows:
        raise PlanError("neither use_dynamic_bsz=true nor a micro-batch size per GPU is set")
    return -(-int(rows) * longest // parallel)


@dataclass(frozen=True)
class EngineMemory:
    """Bytes on one device; ``idle`` and ``host`` say where weights and states are between passes.

    ``gathered``, ``activations`` and ``logits`` are those of a training pass, if there is one; ``working`` is the
    maximum over a training pass and a pass without gradients.
    """

    name: str
    weights: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    logits: float
    idle: float
    host: float
    working: float


def engine_memory(engine: Engine) -> EngineMemory:
    """Return the memory of an engine, per device."""
    weights = (engine.shape.weights + engine.adapter) * engine.weight_bytes / engine.shards
    gradients = engine.trained * engine.weight_bytes / engine.shards
    optimizer = ADAM_STATES * gradients
    gathered, activations, logits = gathered_bytes(engine), activation_bytes(engine), logit_bytes(engine)
    held = 0.0 if engine.stays_on_host else weights + gradients + optimizer
    working = held + gathered + activations + logits
    if engine.trained and engine.forward_tokens is not None:
        forward = replace(engine, trained=0, tokens=engine.forward_tokens)
        needed = gathered_bytes(forward) + activation_bytes(forward) + logit_bytes(forward)
        working = max(working, held - gradients - (optimizer if engine.optimizer_offload else 0.0) + needed)
    # verl frees the gradients after the optimizer's step.
    on_host = engine.stays_on_host or engine.param_offload
    host, idle = (pinned_bytes(weights, engine.shape), 0.0) if on_host else (0.0, weights)
    if engine.optimizer_offload:
        host += ADAM_STATES * pinned_bytes(gradients, engine.shape)
    elif not engine.stays_on_host:
        idle += optimizer
    return EngineMemory(engine.name, weights, gradients, optimizer, gathered, activations, logits, idle, host, working)


def pinned_bytes(total: float, shape: ModelShape) -> float:
    """Return the pinned host memory for ``total`` bytes that are spread over a model as its weights are.

    Torch rounds every pinned tensor up to a power of two. A tensor is taken to be the shard of a block, and of all that
    is outside of the blocks, as FSDP1 flattens them; with FSDP2 it is that of a parameter, and the sum much the same.
    """
    units = [shape.root_weights] + [shape.block_weights] * shape.layers
    parts = [total * unit / sum(units) for unit in units]
    return float(sum(2 ** math.ceil(math.log2(part)) for part in parts if part > 0))


def gathered_bytes(engine: Engine) -> float:
    """Return what FSDP gathers: the weights outside of the blocks, a block with its gradients, and the next block."""
    shape = engine.shape
    blocks = min(2, shape.layers) * shape.block_weights
    gradients = shape.block_weights if engine.trained else 0
    return float(shape.root_weights + blocks + gradients) * engine.compute_bytes


def activation_bytes(engine: Engine) -> float:
    """Return the activations of a micro-batch: all those of one block, and of each other block its input or all."""
    shape, tokens = engine.shape, engine.tokens
    block = KEPT_WIDTHS * shape.width + 2 * (shape.attention_width + shape.key_value_width) + 4 * shape.intermediate
    if not engine.trained:
        return float(tokens * (shape.width + block) * engine.compute_bytes)
    layers = engine.trained_layers or shape.layers
    kept = layers * shape.width + block if engine.recompute else layers * block
    return float(tokens * kept * engine.compute_bytes)


def logit_bytes(engine: Engine) -> float:
    """Return the logits that exist at once, and what fused log-probabilities need instead."""
    vocabulary, tokens = engine.shape.vocabulary, engine.tokens
    if engine.backend is None:
        each = FP32 * PLAIN_COPIES_FLOAT32 if engine.compute_bytes == FP32 else PLAIN_BYTES_16_BIT
        return float(tokens * vocabulary * each)
    chunk, copies = CHUNKED_LOGITS.get(engine.backend, (0, 0))
    pieces = min(tokens, chunk) * vocabulary * FP32 * copies
    if engine.trained_layers is not None or engine.trained <= engine.adapter:
        return float(pieces)
    # The gradient of the output layer is summed over the chunks in float32, and cast to 16 bit afterwards.
    weights = vocabulary * engine.shape.width
    cast = weights * engine.compute_bytes if engine.compute_bytes < FP32 else 0
    return float(weights * FP32 + max(pieces, cast))
