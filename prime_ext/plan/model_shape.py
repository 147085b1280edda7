# SPDX-License-Identifier: Apache-2.0
"""The sizes of a model from its config.json alone; no weights are read."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any


class PlanError(ValueError):
    """A plan cannot be made; the message is one line that says why."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a causal language model, or of a classifier on an encoder.

    Attributes:
        path: its folder.
        weights: all parameters, tied ones once.
        product_weights: those that take part in matrix products, i.e. without an input embedding of its own.
        block_weights: the largest transformer block, which FSDP gathers at once.
        root_weights: everything outside of the blocks (embeddings, output layer), gathered during the whole pass.
        layers, width, intermediate: layers, hidden size, size of the feed-forward layer.
        vocabulary: outputs of a token: embeddings, or classes.
        attention_width, key_value_width: dimensions of a head x heads, and x key-value heads.
        mixture: whether there are experts, of which a token uses a few.
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
    mixture: bool

    def with_values(self) -> "ModelShape":
        """The same model with one value per token in place of logits: a critic."""
        output = self.vocabulary * self.width
        own = 0 if self.product_weights == self.weights else output
        weights, products, root = self.weights - own, self.product_weights - output, self.root_weights - own
        return replace(self, weights=weights, product_weights=products, root_weights=root, vocabulary=1)


@cache
def read_shape(key: str, path: str, trust_remote_code: bool = False, classes: int | None = None) -> ModelShape:
    """Sizes of the model whose config.json is in ``path``.

    Args:
        key: the configuration's key, for messages.
        path: local folder.
        trust_remote_code: whether the model may bring its own code.
        classes: outputs of a classifier; None for a causal language model.

    Raises:
        PlanError: there is no config.json, or no model of that kind.
    """
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise PlanError(f"{key}: {path} has no config.json; the plan reads local models only")
    try:
        model = _empty_model(str(folder), trust_remote_code, classes)
    except (ValueError, KeyError, OSError) as error:
        kind = "causal language model" if classes is None else "model for classification"
        raise PlanError(f"{key}: {folder} is no {kind} ({str(error).splitlines()[0]})") from error
    config, weights = model.config.get_text_config(), _count(model)
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    if classes is None:
        # The transformer blocks are what FSDP wraps.
        names = model._no_split_modules or ()
        blocks = [_count(module) for module in model.modules() if type(module).__name__ in names]
        embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings()
        looked_up = 0 if output is not None and output.weight is embedding else embedding.numel()
    else:
        from torch import nn

        looked_up = sum(_count(module) for module in model.modules() if isinstance(module, nn.Embedding))
        blocks = [(weights - looked_up) // config.num_hidden_layers] * config.num_hidden_layers
    return ModelShape(
        path=str(folder),
        weights=weights,
        product_weights=weights - looked_up,
        block_weights=max(blocks),
        root_weights=weights - sum(blocks),
        layers=len(blocks),
        width=config.hidden_size,
        intermediate=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        vocabulary=config.vocab_size if classes is None else classes,
        attention_width=heads * head,
        key_value_width=(getattr(config, "num_key_value_heads", None) or heads) * head,
        mixture=any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")),
    )


def _count(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _empty_model(path: str, trust_remote_code: bool, classes: int | None = None) -> Any:
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    kind = AutoModelForCausalLM
    if classes is not None:
        kind, config.num_labels = AutoModelForSequenceClassification, classes
    with init_empty_weights(include_buffers=True):
        model = kind.from_config(config, trust_remote_code=trust_remote_code)
    model.tie_weights()
    return model


def adapter_weights(
    key: str, shape: ModelShape, rank: int, target_modules: Any, trust_remote_code: bool = False
) -> int:
    """Weights of a LoRA adapter, as PEFT makes it: rank x (inputs + outputs) of every adapted layer.

    Args:
        key: the configuration's key, for messages.
        shape: of the model.
        rank: of the adapter.
        target_modules: as PEFT's: ``all-linear``, names that a layer's name ends in, or a regular expression.
        trust_remote_code: as in verl.

    Raises:
        PlanError: no layer has such a name.
    """
    from peft import LoraConfig, get_peft_model

    targets = target_modules if isinstance(target_modules, str) else list(target_modules)
    model = _empty_model(shape.path, trust_remote_code)
    try:
        model = get_peft_model(model, LoraConfig(r=rank, target_modules=targets), low_cpu_mem_usage=True)
    except ValueError as error:
        raise PlanError(f"{key}.target_modules={target_modules} names no layer of {shape.path}") from error
    return sum(weights.numel() for weights in model.parameters() if weights.requires_grad)
