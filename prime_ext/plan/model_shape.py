# SPDX-License-Identifier: Apache-2.0
"""Sizes of a causal language model from its config.json; no weights are read."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any


class PlanError(ValueError):
    """A plan cannot be made; the message is one line that says why."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a causal language model.

    Attributes:
        path: its folder.
        weights: all parameters, tied ones once.
        product_weights: those that take part in matrix products, i.e. without an untied input embedding.
        block_weights: the largest transformer block, which FSDP gathers at once.
        root_weights: everything outside of the blocks (embeddings, output layer), gathered during the whole pass.
        layers, width, intermediate: layers, hidden size, size of the feed-forward layer.
        vocabulary: outputs per token: one logit per embedding, or one value.
        attention_width, key_value_width: dimensions of a head x heads, and x key-value heads.
    """

    path: str
    weights: int
    product_weights: int
    block_weights: int
    root_weights: int
    layers: int
    width: int
    intermediate: int
    vocabulary: int
    attention_width: int
    key_value_width: int

    def with_values(self) -> "ModelShape":
        """Return the same model with one value per token in place of logits: a critic."""
        output = self.vocabulary * self.width
        untied = 0 if self.product_weights == self.weights else output
        return replace(
            self,
            weights=self.weights - untied,
            product_weights=self.product_weights - output,
            root_weights=self.root_weights - untied,
            vocabulary=1,
        )


@cache
def read_shape(key: str, path: str, trust_remote_code: bool = False) -> ModelShape:
    """Return the sizes of the model whose config.json is in ``path``; ``key`` names the setting in messages.

    Raises:
        PlanError: there is no config.json, or it is not that of a causal language model.
    """
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise PlanError(f"{key}: {path} has no config.json; the plan reads local models only")
    try:
        model = _build_empty_model(str(folder), trust_remote_code)
    except (ValueError, KeyError, OSError) as error:
        raise PlanError(f"{key}: {folder} is not a causal language model ({str(error).splitlines()[0]})") from error
    config = model.config.get_text_config()
    weights = _count(model)
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    # The transformer blocks are what FSDP wraps.
    names = model._no_split_modules or ()
    blocks = [_count(module) for module in model.modules() if type(module).__name__ in names]
    embedding = model.get_input_embeddings().weight
    output = model.get_output_embeddings()
    looked_up = 0 if output is not None and output.weight is embedding else embedding.numel()
    return ModelShape(
        path=str(folder),
        weights=weights,
        product_weights=weights - looked_up,
        block_weights=max(blocks),
        root_weights=weights - sum(blocks),
        layers=len(blocks),
        width=config.hidden_size,
        intermediate=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        vocabulary=config.vocab_size,
        attention_width=heads * head,
        key_value_width=(getattr(config, "num_key_value_heads", None) or heads) * head,
    )


def adapter_weights(
    key: str, shape: ModelShape, rank: int, target_modules: Any, trust_remote_code: bool = False
) -> int:
    """Return the number of weights of a LoRA adapter as PEFT builds it; ``key`` names the model's section in messages.

    Raises:
        PlanError: ``target_modules`` names no layer.
    """
    from peft import LoraConfig, get_peft_model

    targets = target_modules if isinstance(target_modules, str) else list(target_modules)
    model = _build_empty_model(shape.path, trust_remote_code)
    try:
        model = get_peft_model(model, LoraConfig(r=rank, target_modules=targets), low_cpu_mem_usage=True)
    except ValueError as error:
        raise PlanError(f"{key}.target_modules={target_modules} names no layer of {shape.path}") from error
    return sum(weights.numel() for weights in model.parameters() if weights.requires_grad)


def _count(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _build_empty_model(path: str, trust_remote_code: bool) -> Any:
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    with init_empty_weights(include_buffers=True):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    model.tie_weights()
    return model
