# SPDX-License-Identifier: Apache-2.0
"""A model's sizes from its config.json, and the memory of an engine of verl's on one device.

Weights, gradients and optimizer states are exact. The needs of a pass (gathered weights,
activations, logits) are estimates from the sizes of the model; ``docs/how_to/cost.md`` says how far
they are from measured runs.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from prime_ext.config.checks import SettingsError
from prime_ext.config.engines import CHUNKED, DTYPE_BYTES

# Bytes of all logits that exist at once, per token and word, by the bytes of a number. In float32
# 3.7 copies, measured on the CPU (docs/retired.md); in 16 bit logits and gradient, and one copy in
# float32 for the softmax.
PLAIN_LOGIT_BYTES = {4: 4 * 3.7, 2: 8}
# Tokens per chunk, and float32 copies of a chunk.
CHUNKED_LOGITS = {CHUNKED: (256, 2), "torch": (512, 6)}
# Hidden-size vectors that a block keeps for its backward pass besides attention and feed-forward.
KEPT_WIDTHS = 8
FP32 = 4


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a causal language model, in parameters and dimensions."""

    weights: int  # tied ones once
    tied: bool  # the input embedding is the output layer
    block_weights: int  # of the largest transformer block, which FSDP gathers at once
    # outside of the blocks (embeddings, output layer), gathered during the complete pass
    root_weights: int
    layers: int
    width: int
    intermediate: int  # of the experts that a token reaches, together
    vocabulary: int  # outputs per token
    attention_width: int
    key_value_width: int
    idle_weights: int = 0  # of experts that a token does not reach

    def make_critic(self) -> "ModelShape":
        """Return the same model with one value per token in place of logits: a critic."""
        lost = 0 if self.tied else self.vocabulary * self.width
        weights = self.weights - lost
        return replace(self, weights=weights, root_weights=self.root_weights - lost, vocabulary=1)


@cache
def read_shape(key: str, path: str, trust_remote_code: bool = False) -> ModelShape:
    """Return the sizes of the model with its config.json in ``path``; errors name ``key``."""
    if not (Path(path).expanduser() / "config.json").is_file():
        instead = (
            f"--model-configs DIR reads DIR/{Path(path).name}/config.json in its place"
            " (recipes/model_configs)"
        )
        raise SettingsError(f"{key}: {path} has no config.json here; {instead}")
    try:
        model = _build_empty_model(path, trust_remote_code)
    except (ValueError, KeyError, OSError) as error:
        raise SettingsError(
            f"{key}: {path} is not a causal language model ({str(error).splitlines()[0]})"
        ) from error
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    # The transformer blocks are what FSDP wraps.
    wrapped = [
        module
        for module in model.modules()
        if type(module).__name__ in (model._no_split_modules or ())
    ]
    blocks = [sum(weight.numel() for weight in module.parameters()) for module in wrapped]
    weights = model.num_parameters()
    embedding = model.get_input_embeddings().weight
    output = model.get_output_embeddings()
    idle = _count_idle_weights(model)
    intermediate = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    if idle:
        intermediate = config.num_experts_per_tok * config.moe_intermediate_size
    return ModelShape(
        weights=weights,
        tied=output is not None and output.weight is embedding,
        block_weights=max(blocks),
        root_weights=weights - sum(blocks),
        layers=len(blocks),
        width=config.hidden_size,
        intermediate=intermediate,
        vocabulary=config.vocab_size,
        attention_width=heads * head,
        key_value_width=(getattr(config, "num_key_value_heads", None) or heads) * head,
        idle_weights=idle,
    )


def _count_idle_weights(model: Any) -> int:
    """Return the weights of experts that a token does not reach; 0 of a model without experts."""
    # transformers has the experts of a layer in tensors whose first axis counts them.
    experts = [
        weight
        for name, weight in model.named_parameters()
        if ".experts." in name and weight.dim() == 3
    ]
    reached = model.config.get_text_config().num_experts_per_tok if experts else 0
    return sum(weight.numel() // len(weight) * (len(weight) - reached) for weight in experts)


def adapter_weights(
    path: str, rank: int, target_modules: Any, trust_remote_code: bool = False
) -> int:
    """Return the number of weights of a LoRA adapter as PEFT builds it."""
    from peft import LoraConfig, get_peft_model

    targets = target_modules if isinstance(target_modules, str) else list(target_modules)
    model = _build_empty_model(path, trust_remote_code)
    adapter = get_peft_model(
        model, LoraConfig(r=rank, target_modules=targets), low_cpu_mem_usage=True
    )
    return adapter.get_nb_trainable_parameters()[0]


def _build_empty_model(path: str, trust_remote_code: bool) -> Any:
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(
        Path(path).expanduser(), trust_remote_code=trust_remote_code
    )
    with init_empty_weights(include_buffers=True):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    model.tie_weights()
    return model


@dataclass(frozen=True)
class Engine:
    """Sizes and settings of one model, from the configuration."""

    shape: ModelShape
    # weights with gradient and states: all, those of an adapter or of the last layers, or 0
    trained: int
    adapter: int  # weights of the adapter, in addition to the model's
    weight_bytes: int
    compute_bytes: int
    shards: int  # devices that share the weights
    tokens: int  # of a micro-batch on one device
    recompute: bool
    backend: str | None = None  # of fused log-probabilities
    param_offload: bool = False
    optimizer_offload: bool = False
    # gathered from the host block by block, as verl does for models that are not trained
    stays_on_host: bool = False
    forward_tokens: int | None = None  # of a micro-batch without gradients; None for the same
    trained_layers: int | None = None  # that a backward pass goes through; None for all
    is_target: bool = False  # of the policy's loss


def read_engine(
    key: str,
    model: Any,
    engine: Any,
    batches: Any,
    forward: Any = None,
    *,
    trainer: Any,
    longest: int,
) -> Engine:
    """Return one model's engine from verl's sections, as if the model were trained.

    Errors name the setting ``key``. ``forward`` is the budget of a pass without gradients,
    ``longest`` the tokens of the longest sequence.
    """
    strategy = engine.get("strategy") or batches.get("strategy")
    if strategy not in ("fsdp", "fsdp2"):
        raise SettingsError(
            f"the plan knows the strategies fsdp and fsdp2, not {strategy} of {key}"
        )
    trust = bool(model.trust_remote_code)
    rank = int(model.get("lora_rank", 0) or 0)
    shape = read_shape(key, str(model.path), trust)
    adapter = adapter_weights(str(model.path), rank, model.target_modules, trust) if rank else 0
    devices = int(trainer.n_gpus_per_node * trainer.nnodes)
    group = int(engine.get("fsdp_size", -1))
    # On the CPU the weights are in host memory anyway, and prime_ext leaves them there.
    accelerator = trainer.device != "cpu"
    return Engine(
        shape=shape,
        trained=adapter or shape.weights,
        adapter=adapter,
        weight_bytes=DTYPE_BYTES[engine.model_dtype or "fp32"],
        # verl's mixed precision is bf16 by default.
        compute_bytes=DTYPE_BYTES[(engine.get("mixed_precision") or {}).get("param_dtype", "bf16")],
        shards=min(group, devices) if group >= 0 else devices,
        tokens=_micro_batch_tokens(
            batches, longest, engine.get("ulysses_sequence_parallel_size", 1) or 1
        ),
        recompute=bool(model.enable_gradient_checkpointing),
        backend=(
            (model.get("fused_kernel_options") or {}).get("impl_backend")
            if model.use_fused_kernels
            else None
        ),
        param_offload=bool(engine.param_offload) and accelerator,
        optimizer_offload=bool(engine.optimizer_offload) and accelerator,
        stays_on_host=bool(engine.get("offload_policy")) and accelerator,
        forward_tokens=int(forward) if forward and batches.use_dynamic_bsz else None,
    )


def freeze(engine: Engine) -> Engine:
    """Return the engine of a model that is never trained."""
    return replace(
        engine, trained=0, tokens=engine.forward_tokens or engine.tokens, forward_tokens=None
    )


def keep_on_host(engine: Engine, cpu: bool) -> Engine:
    """Return a frozen engine as verl runs those with ``forward_only``.

    On accelerators the weights stay on the host.
    """
    return replace(freeze(engine), param_offload=False, stays_on_host=not cpu)


def _micro_batch_tokens(batches: Any, longest: int, parallel: int) -> int:
    """Return the tokens of the largest micro-batch on one device, with sequences of full length."""
    if batches.use_dynamic_bsz:
        # The first one is a critic's, the last one a PRM's.
        keys = (
            "ppo_infer_max_token_len_per_gpu",
            "ppo_max_token_len_per_gpu",
            "max_token_len_per_gpu",
        )
        budget = next(batches[key] for key in keys if batches.get(key))
        return max(int(budget), -(-longest // parallel))
    rows = batches.get("ppo_micro_batch_size_per_gpu") or batches.get("micro_batch_size_per_gpu")
    if not rows:
        raise SettingsError("neither use_dynamic_bsz=true nor a micro-batch size per GPU is set")
    return -(-int(rows) * longest // parallel)


def engine_memory(engine: Engine) -> dict[str, float]:
    """Return bytes on one device: the parts of the largest pass, ``working`` and ``idle``.

    ``working`` is the sum of the parts, ``idle`` the bytes between passes.
    """
    on_device = 0.0 if engine.stays_on_host else engine.weight_bytes / engine.shards
    weights = (engine.shape.weights + engine.adapter) * on_device
    gradients = engine.trained * on_device
    optimizer = 2 * gradients  # Adam's two states
    # verl frees the gradients after the optimizer's step.
    states = 0.0 if engine.optimizer_offload else optimizer
    parts = {"weights": weights, "gradients": gradients, "optimizer": optimizer} | pass_memory(
        engine
    )
    if engine.trained and engine.forward_tokens is not None:
        forward = pass_memory(replace(engine, trained=0, tokens=engine.forward_tokens))
        without = parts | {"gradients": 0.0, "optimizer": states} | forward
        parts = max(parts, without, key=lambda each: sum(each.values()))
    idle = states + (0.0 if engine.param_offload else weights)
    return parts | {"working": sum(parts.values()), "idle": idle}


def pass_memory(engine: Engine) -> dict[str, float]:
    """Return the bytes of a pass over a micro-batch beyond weights, gradients and states.

    FSDP gathers the weights outside of the blocks, a block with its gradients, and the next block.
    All activations of one block are kept, and of each other block its input or all.
    """
    shape = engine.shape
    blocks = min(2, shape.layers) + bool(engine.trained)
    inside = (
        KEPT_WIDTHS * shape.width
        + 2 * (shape.attention_width + shape.key_value_width)
        + 4 * shape.intermediate
    )
    layers = (engine.trained_layers or shape.layers) if engine.trained else 1
    kept = (
        layers * shape.width + inside if engine.recompute or not engine.trained else layers * inside
    )
    return {
        "gathered": float(shape.root_weights + blocks * shape.block_weights) * engine.compute_bytes,
        "activations": float(engine.tokens * kept * engine.compute_bytes),
        "logits": _logit_bytes(engine),
    }


def _logit_bytes(engine: Engine) -> float:
    """Return the bytes of logits that exist at once, or those of fused log-probabilities."""
    vocabulary = engine.shape.vocabulary
    tokens = engine.tokens
    if engine.backend is None:
        return float(tokens * vocabulary * PLAIN_LOGIT_BYTES[engine.compute_bytes])
    chunk, copies = CHUNKED_LOGITS.get(engine.backend, (0, 0))
    pieces = min(tokens, chunk) * vocabulary * FP32 * copies
    if engine.trained_layers is not None or engine.trained <= engine.adapter:
        return float(pieces)
    # The gradient of the output layer is summed over chunks in float32, and then cast to 16 bit.
    weights = vocabulary * engine.shape.width
    cast = weights * engine.compute_bytes if engine.compute_bytes < FP32 else 0
    return float(weights * FP32 + max(pieces, cast))
