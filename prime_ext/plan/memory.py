# SPDX-License-Identifier: Apache-2.0
"""One engine, as verl's sections of a configuration describe it, and its memory on one device: what it holds, and what
it needs while it works.

Weights, gradients and optimiser states are exact. What a pass needs (gathered weights, activations, logits) is an
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
# Hidden-size vectors that a block keeps for its backward pass beside attention and feed-forward.
KEPT_WIDTHS = 8
ADAM_STATES = 2
FP32 = 4


@dataclass(frozen=True)
class Engine:
    """What the configuration says about one model.

    Attributes:
        name: in the table.
        shape: sizes of the model.
        trained: weights with gradient and optimiser states: all, those of an adapter or of the last layers, or 0.
        adapter: weights of the adapter, which come on top of the model's.
        weight_bytes, compute_bytes: bytes of a weight at rest and in a pass.
        shards: devices that share the weights.
        tokens: of a micro-batch, on one device.
        recompute: whether only the inputs of the blocks are kept.
        backend: of fused log-probabilities; None for plain ones.
        param_offload, optimizer_offload: moved to the host between passes.
        stays_on_host: gathered from the host block by block, as verl does for models that are not trained.
        forward_tokens: of a pass without gradients through a model that is trained; None for as many.
        trained_layers: decoder layers that a backward pass goes through; None for all.
        replicas: devices that each hold the whole model and exchange gradients; 0 with FSDP.
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
    replicas: int = 0

    @property
    def trained_share(self) -> float:
        """Share of the layers that a backward pass goes through."""
        return 1 if self.trained_layers is None else self.trained_layers / self.shape.layers


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
    only_forward = replace(engine, trained=0, tokens=engine.forward_tokens or engine.tokens, recompute=False)
    return replace(only_forward, param_offload=False, optimizer_offload=False, stays_on_host=not cpu)


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


@dataclass(frozen=True)
class EngineMemory:
    """Bytes on one device; ``idle`` and ``host`` say where weights and states are between passes.

    ``activations`` and ``logits`` are those of a training pass, if there is one; ``working`` is the larger of what that
    and a pass without gradients need.
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
    """Memory of an engine, per device."""
    weights = (engine.shape.weights + engine.adapter) * engine.weight_bytes / engine.shards
    gradients = engine.trained * engine.weight_bytes / engine.shards
    optimizer, waits_on_host = ADAM_STATES * gradients, engine.stays_on_host or engine.param_offload
    needed = gathered, activations, logits = _pass_bytes(engine)
    held = 0.0 if engine.stays_on_host else weights + gradients + optimizer
    working = held + sum(needed)
    if engine.trained and engine.forward_tokens is not None:
        forward = sum(_pass_bytes(replace(engine, trained=0, tokens=engine.forward_tokens)))
        working = max(working, held - gradients - (optimizer if engine.optimizer_offload else 0.0) + forward)
    # verl frees the gradients when the optimiser has stepped.
    host, idle = (pinned_bytes(weights, engine.shape), 0.0) if waits_on_host else (0.0, weights)
    if engine.optimizer_offload:
        host += ADAM_STATES * pinned_bytes(gradients, engine.shape)
    elif not engine.stays_on_host:
        idle += optimizer
    return EngineMemory(engine.name, weights, gradients, optimizer, gathered, activations, logits, idle, host, working)


def _pass_bytes(engine: Engine) -> tuple[float, float, float]:
    return gathered_bytes(engine), activation_bytes(engine), logit_bytes(engine)


def pinned_bytes(total: float, shape: ModelShape) -> float:
    """Pinned host memory for ``total`` bytes that are spread over a model as its weights are.

    Torch rounds every pinned tensor up to a power of two. A tensor is taken to be the shard of a block, and of all that
    is outside of the blocks, as FSDP1 flattens them; with FSDP2 it is that of a parameter, and the sum much the same.
    """
    units = [shape.root_weights] + [shape.block_weights] * shape.layers
    parts = [total * unit / sum(units) for unit in units]
    return float(sum(2 ** math.ceil(math.log2(part)) for part in parts if part > 0))


def gathered_bytes(engine: Engine) -> float:
    """Weights beside those at rest: everything outside of the blocks, a block, and the next one, which FSDP gathers.

    A model that every device holds has a copy in 16 bit, and its gradients on their way to the others.
    """
    shape = engine.shape
    if engine.replicas:
        cast = engine.compute_bytes if engine.compute_bytes < engine.weight_bytes else 0
        return float(shape.weights * (cast + (FP32 if engine.replicas > 1 else 0)))
    blocks = min(2, shape.layers) * shape.block_weights
    gradients = shape.block_weights if engine.trained else 0
    return float(shape.root_weights + blocks + gradients) * engine.compute_bytes


def activation_bytes(engine: Engine) -> float:
    """Activations of a micro-batch: those of one block, and either its input or everything of each other block."""
    shape, tokens = engine.shape, engine.tokens
    block = KEPT_WIDTHS * shape.width + 2 * (shape.attention_width + shape.key_value_width) + 4 * shape.intermediate
    if not engine.trained:
        return float(tokens * (shape.width + block) * engine.compute_bytes)
    layers = engine.trained_layers or shape.layers
    kept = layers * shape.width + block if engine.recompute else layers * block
    return float(tokens * kept * engine.compute_bytes)


def logit_bytes(engine: Engine) -> float:
    """Logits that exist at once, and what computing them piece by piece needs."""
    vocabulary, tokens = engine.shape.vocabulary, engine.tokens
    if engine.backend is None:
        each = FP32 * PLAIN_COPIES_FLOAT32 if engine.compute_bytes == FP32 else PLAIN_BYTES_16_BIT
        return float(tokens * vocabulary * each)
    chunk, copies = CHUNKED_LOGITS.get(engine.backend, (0, 0))
    pieces = min(tokens, chunk) * vocabulary * FP32 * copies
    if engine.trained_layers is not None or engine.trained <= engine.adapter:
        return float(pieces)
    # The gradient of the output layer is summed over the chunks in float32, and behind them cast to 16 bit.
    weights = vocabulary * engine.shape.width
    cast = weights * engine.compute_bytes if engine.compute_bytes < FP32 else 0
    return float(weights * FP32 + max(pieces, cast))


def checkpoint_bytes(engine: Engine, contents: list[str]) -> float:
    """Bytes of what a checkpoint of a model holds, by verl's names of its contents.

    Weights and optimiser states are FSDP shards; with an adapter, verl's engines save the whole model.
    """
    weights = engine.shape.weights + engine.adapter
    sizes = {
        "model": weights * engine.weight_bytes,
        "optimizer": ADAM_STATES * engine.trained * engine.weight_bytes,
        "hf_model": weights * FP32,
    }
    return float(sum(size for name, size in sizes.items() if name in contents))
