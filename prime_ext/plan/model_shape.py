# SPDX-License-Identifier: Apache-2.0
"""The sizes of a model from its config.json alone; no weights are read."""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from prime_ext.plan.errors import PlanError


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a causal language model.

    Attributes:
        path: its folder.
        weights: all parameters, tied ones once.
        product_weights: those that take part in matrix products, i.e. without an input embedding of its own.
        block_weights: the largest transformer block, which FSDP gathers at once.
        root_weights: everything outside of the blocks (embeddings, output layer), gathered during the whole pass.
        layers, width, intermediate, vocabulary, attention_width: layers, hidden size, size of the feed-forward layer,
            embeddings, and heads x dimensions of a head.
        key_value_width: key-value heads x dimensions of a head.
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
        return replace(
            self,
            weights=self.weights - own,
            product_weights=self.product_weights - output,
            root_weights=self.root_weights - own,
            vocabulary=1,
        )


def read_shape(key: str, path: str, trust_remote_code: bool = False) -> ModelShape:
    """Sizes of the model whose config.json is in ``path``.

    Args:
        key: the configuration's key, for messages.
        path: local folder.
        trust_remote_code: as in verl.

    Raises:
        PlanError: there is no config.json, or no causal language model of that kind.
    """
    file = Path(path).expanduser() / "config.json"
    if not file.is_file():
        raise PlanError(f"{key}: {path} has no config.json; the plan reads local models only")
    return _read(key, str(Path(path).expanduser()), trust_remote_code)


@cache
def _read(key: str, path: str, trust_remote_code: bool) -> ModelShape:
    try:
        model = _empty_model(path, trust_remote_code)
    except (ValueError, KeyError, OSError, json.JSONDecodeError) as error:
        raise PlanError(f"{key}: {path} is no causal language model ({str(error).splitlines()[0]})") from error
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    blocks = _blocks(model)
    weights = sum(parameter.numel() for parameter in model.parameters())
    embedding = model.get_input_embeddings().weight
    output = model.get_output_embeddings()
    tied = output is not None and output.weight is embedding
    block_sizes = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks]
    return ModelShape(
        path=path,
        weights=weights,
        product_weights=weights if tied else weights - embedding.numel(),
        block_weights=max(block_sizes),
        root_weights=weights - sum(block_sizes),
        layers=len(blocks),
        width=config.hidden_size,
        intermediate=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        vocabulary=config.vocab_size,
        attention_width=heads * head,
        key_value_width=(getattr(config, "num_key_value_heads", None) or heads) * head,
        mixture=any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")),
    )


def read_classifier_shape(key: str, path: str, classes: int, trust_remote_code: bool = False) -> ModelShape:
    """Sizes of a classifier on the model whose config.json is in ``path``; its ``vocabulary`` is that of the classes.

    Args:
        key: the configuration's key, for messages.
        path: local folder.
        classes: outputs of the head.
        trust_remote_code: whether the model may bring its own code.

    Raises:
        PlanError: there is no config.json, or no classifier of that kind.
    """
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise PlanError(f"{key}: {path} has no config.json; the plan reads local models only")
    try:
        model = _empty_model(str(folder), trust_remote_code, classes)
    except (ValueError, KeyError, OSError, json.JSONDecodeError) as error:
        raise PlanError(f"{key}: {path} is no model for classification ({str(error).splitlines()[0]})") from error
    from torch import nn

    config = model.config.get_text_config()
    embeddings = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Embedding))
    weights = sum(parameter.numel() for parameter in model.parameters())
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    return ModelShape(
        path=str(folder),
        weights=weights,
        product_weights=weights - embeddings,
        block_weights=(weights - embeddings) // layers,
        root_weights=embeddings,
        layers=layers,
        width=config.hidden_size,
        intermediate=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        vocabulary=classes,
        attention_width=heads * head,
        key_value_width=(getattr(config, "num_key_value_heads", None) or heads) * head,
        mixture=False,
    )


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


def _blocks(model: Any) -> list[Any]:
    """The transformer blocks: what FSDP wraps."""
    names = model._no_split_modules or ()
    return [module for module in model.modules() if type(module).__name__ in names]


def adapter_weights(
    key: str, shape: ModelShape, rank: int, target_modules: Any, trust_remote_code: bool = False
) -> int:
    """Weights of a LoRA adapter: rank x (inputs + outputs) of every adapted layer.

    Args:
        key: the configuration's key, for messages.
        shape: of the model.
        rank: of the adapter.
        target_modules: ``all-linear`` (all but the output layer), or names that a layer's name ends in.
        trust_remote_code: as in verl.

    Raises:
        PlanError: no layer has such a name.
    """
    from torch import nn

    model = _empty_model(shape.path, trust_remote_code)
    output = model.get_output_embeddings()
    count = 0
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        if module is not output if target_modules == "all-linear" else _named(name, target_modules):
            count += rank * (module.in_features + module.out_features)
    if not count:
        raise PlanError(f"{key}.target_modules={target_modules} names no layer of {shape.path}")
    return count


def _named(name: str, targets: Any) -> bool:
    names = [targets] if isinstance(targets, str) else list(targets)
    return any(name == target or name.endswith(f".{target}") for target in names)
