# SPDX-License-Identifier: Apache-2.0
"""What an exported PRM says about itself, beside its weights: how it was trained, and what is needed to score."""

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prime_ext.utils.files import read_json

FILE = "prime_ext_prm.json"


def model_name(path: str) -> str:
    """A model's hub name as it is, a local folder as an absolute path."""
    return str(Path(path).resolve()) if Path(path).exists() else path


def name_from(folder: Path, model: str) -> str:
    """A model as seen from a folder: the relative path of a local one, so that both can be moved together."""
    return os.path.relpath(model, folder.resolve()) if Path(model).is_absolute() else model


def read_description(model: str) -> dict[str, Any]:
    """What :data:`FILE` says of a model, its reference as something to load; empty for models without it."""
    file = Path(model) / FILE
    if not file.is_file():
        return {}
    found = read_json(file)
    beside = Path(model, found.get("reference") or "")
    return found | {"reference": str(beside.resolve())} if found.get("reference") and beside.is_dir() else found


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    return {name: version(name) for name in ("prime-ext", "verl", "torch", "transformers")}
