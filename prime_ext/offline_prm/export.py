# SPDX-License-Identifier: Apache-2.0
"""The trained PRM as a Hugging Face folder, with what is needed to score with it."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from prime_ext.utils.files import atomic_path, write_json

FILE = "prime_ext_prm.json"


def write_model(
    folder: Path, weights: dict[str, torch.Tensor], model_config: Any, dtype: str, description: dict[str, Any]
) -> None:
    """Write weights, configuration, tokenizer and :data:`FILE`; the folder appears when it is whole.

    Args:
        folder: where to.
        weights: by Hugging Face name.
        model_config: verl's ``HFModelConfig`` of the model.
        dtype: of the weights in the file.
        description: contents of :data:`FILE`.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            model_config.hf_config, dtype=getattr(torch, dtype), trust_remote_code=model_config.trust_remote_code
        )
    cast = {name: tensor.to(getattr(torch, dtype)) for name, tensor in weights.items()}
    model.load_state_dict(cast, strict=False, assign=True)
    model.tie_weights()
    missing = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if missing:
        raise RuntimeError(f"the engine returned no weights for {missing[0]} and {len(missing) - 1} others")
    with atomic_path(folder) as temporary:
        model.save_pretrained(temporary)
        model_config.tokenizer.save_pretrained(temporary)
        write_json(temporary / FILE, description)


def model_name(path: str) -> str:
    """A model's hub name as it is, a local folder as an absolute path."""
    return str(Path(path).resolve()) if Path(path).exists() else path


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    return {name: version(name) for name in ("prime-ext", "verl", "torch", "transformers")}
