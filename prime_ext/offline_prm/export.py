# SPDX-License-Identifier: Apache-2.0
"""The trained PRM as a Hugging Face folder, with what is needed to score with it."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from prime_ext.generate.export import build_model, write_folder

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
    model = build_model(weights, model_config.hf_config, remote_code=model_config.trust_remote_code)
    text = json.dumps(description, indent=2, allow_nan=False) + "\n"
    write_folder(folder, model.to(getattr(torch, dtype)), model_config.tokenizer, {FILE: text})


def model_name(path: str) -> str:
    """A model's hub name as it is, a local folder as an absolute path."""
    return str(Path(path).resolve()) if Path(path).exists() else path


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    return {name: version(name) for name in ("prime-ext", "verl", "torch", "transformers")}
