# SPDX-License-Identifier: Apache-2.0
"""What an exported PRM says beside its weights: how it was trained, and what is needed to score."""

import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prime_ext.utils.files import read_json

# Beside the weights of an exported PRM; the trainer writes one of this name beside the folders of policy and PRM.
FILE = "prime_ext_prm.json"


def model_name(path: str) -> str:
    """A model's hub name as it is, a local folder as an absolute path."""
    return str(Path(path).resolve()) if Path(path).exists() else path


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


def prm_description(run: Mapping[str, Any], bias: Mapping[str, Any] | None, folder: Path) -> dict[str, Any]:
    """What is needed to score with a PRM that was trained online (:data:`FILE`).

    Args:
        run: what the trainer says of the step.
        bias: what the checkpoint says of the PRM's bias; None without one.
        folder: where the description will be. Local models are named relative to it, so that both can be moved
            together.
    """

    def relative(model: str) -> str:
        return os.path.relpath(model, folder.resolve()) if Path(model).is_absolute() else model

    kept = {name: run.get(name) for name in ("beta", "loss", "reference_mode", "reference_moves", "variant", "step")}
    # Of a reference that was a later policy at every step the bias says nothing.
    b = None if bias is None or kept["reference_moves"] else bias["bias"]
    names = {"reference": relative(run["reference"]), "initial_model": relative(run["prm"])}
    return kept | {"bias": b} | names | {"versions": versions()}
