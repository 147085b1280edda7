# SPDX-License-Identifier: Apache-2.0
"""Checks of the PRM's settings from the configuration alone, and from its model's config.json."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from prime_ext.config.engines import CHUNKED, DTYPE_BYTES, VERL_BACKENDS
from prime_ext.methods.prm_settings import PRMSettings, TrainedPRMSettings

# Engines of verl on which the PRM's worker works.
ENGINES = ("fsdp", "fsdp2")


def has_adapter(model: Any) -> bool:
    """Return whether the model has a LoRA adapter, new (Megatron: ``lora.rank``) or loaded."""
    rank = (model.get("lora", None) or {}).get("rank", 0) or model.get("lora_rank", 0) or 0
    return int(rank) > 0 or model.get("lora_adapter_path", None) is not None


def check_prm(config: DictConfig, prm: PRMSettings) -> Iterable[str]:
    """Yield one line per combination of settings that cannot work."""
    strategy = config.prm.engine.get("strategy")
    if strategy not in ENGINES:
        yield (
            f"prm.engine.strategy={strategy}: the PRM runs on {' and '.join(ENGINES)} only,"
            " whatever the policy's is"
        )
    yield from check_weights("prm.engine", config.prm.engine)
    if prm.reference == "base" and not has_adapter(config.prm.model):
        yield (
            "prm.reference=base switches the PRM's LoRA adapter off, and it has none; set"
            " prm.model.lora_rank"
        )
    if not has_adapter(config.prm.model) or not isinstance(prm, TrainedPRMSettings):
        return
    if prm.trainable_layers is not None:
        yield (
            f"prm.trainable_layers={prm.trainable_layers} is not for a model with a LoRA adapter;"
            " set it to null"
        )
    if "hf_model" in config.prm.checkpoint.save_contents:
        remedy = "leave it out, and use `python -m prime_ext.generate.export` on the checkpoint"
        yield (
            "prm.checkpoint.save_contents has hf_model, which verl writes without merging a LoRA"
            f" adapter; {remedy}"
        )


def check_weights(key: str, engine: Any) -> Iterable[str]:
    """Check that PRM and reference, on the engine ``key``, keep their weights in float32.

    In 16 bit small learning rates are lost, and frequencies of rotary embeddings differ between PRM
    and reference.
    """
    dtype = engine.get("model_dtype")
    if DTYPE_BYTES.get(str(dtype)) != 4:
        yield (
            f"{key}.model_dtype={dtype} rounds weights; set it to fp32 (passes:"
            f" {key}.mixed_precision.param_dtype)"
        )


def check_output_layer(key: str, model: Any, strategy: str) -> Iterable[str]:
    """Check that verl's fused kernels reach the output layer of the model section ``key``.

    This reads the model's config.json. The kernels read the layer's weights, which fsdp2 leaves
    sharded where they are not those of the embeddings.
    """
    backend = (model.get("fused_kernel_options") or {}).get("impl_backend")
    if not model.get("use_fused_kernels") or backend not in VERL_BACKENDS or strategy != "fsdp2":
        return
    folder = Path(str(model.path)).expanduser()
    if not (folder / "config.json").is_file():
        return
    from transformers import AutoConfig

    if not AutoConfig.from_pretrained(
        folder, trust_remote_code=bool(model.trust_remote_code)
    ).tie_word_embeddings:
        named = f"{key}.fused_kernel_options.impl_backend={backend}"
        yield (
            f"{named} wants tied embeddings on fsdp2, and {model.path} has none; set it to"
            f" {CHUNKED}"
        )
