# SPDX-License-Identifier: Apache-2.0
"""The file in the folder of an exported PRM: how it was trained, and what is needed to score."""

import math
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prime_ext.utils.run_store import RunError, parse_object

# In the folder of an exported PRM; the trainer writes one of this name next to the folders of
# policy and PRM.
FILE = "prime_ext_prm.json"

_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("beta", "bias"), (int, float)),
    **dict.fromkeys(("loss", "reference", "step_prefix", "step_separator"), (str,)),
    **dict.fromkeys(("append_eos", "reference_moves"), (bool,)),
}


def model_name(path: str) -> str:
    """Return a hub name as it is, a local folder as an absolute path."""
    return str(Path(path).resolve()) if Path(path).exists() else path


def make_relative(model: str, folder: Path) -> str:
    """Return a hub name as it is, an absolute path relative to ``folder``."""
    return os.path.relpath(model, folder.resolve()) if Path(model).is_absolute() else model


def read_description(model: str) -> dict[str, Any]:
    """Read a model's :data:`FILE`, with a loadable reference; return {} for models without it.

    Raises ``RunError``: the file is broken, or holds a value of another type.
    """
    file = Path(model) / FILE
    if not file.is_file():
        return {}
    description = parse_object(file.read_bytes(), str(file))
    for name, kinds in _TYPES.items():
        value = description.get(name)
        if value is not None and (
            not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
        ):
            expected = (
                "a number" if float in kinds else "true or false" if bool in kinds else "a text"
            )
            raise RunError(f"{file}: {name} must be {expected}, got {value!r}")
    if "beta" in description and not 0 < (description["beta"] or 0) < math.inf:
        raise RunError(f"{file}: beta must be above 0, got {description['beta']}")
    reference = Path(model, description.get("reference") or "")
    if description.get("reference") and reference.is_dir():
        description["reference"] = str(reference.resolve())
    return description


def compute_right_probability(description: Mapping[str, Any], reward_sum: float) -> float | None:
    """Return a PRM's probability that a response is right, from the sum of its rewards.

    Rewards are beta times log-ratios. None where the sums only order responses: with another loss
    than cross-entropy, or a reference that was a later policy at every step.
    """
    if description.get("loss") != "ce" or description.get("reference_moves"):
        return None
    return (1 + math.tanh((reward_sum + (description.get("bias") or 0.0)) / 2)) / 2


def versions() -> dict[str, str]:
    """Return the versions of what the numbers depend on."""
    return {name: version(name) for name in ("prime-ext", "verl", "torch", "transformers")}


def prm_description(
    run: Mapping[str, Any], bias: Mapping[str, Any] | None, folder: Path
) -> dict[str, Any]:
    """Build :data:`FILE` of a PRM trained online, from the trainer's file and the saved bias.

    Local models are named relative to ``folder``, where the description will be, so that both can
    move together.
    """
    recorded = ("beta", "loss", "reference_mode", "reference_moves", "variant", "step")
    kept = {name: run[name] for name in recorded if name in run}
    # A bias means nothing for a reference that was a later policy at every step.
    b = None if bias is None or kept.get("reference_moves") else bias["bias"]
    names = {
        "reference": make_relative(run["reference"], folder),
        "initial_model": make_relative(run["prm"], folder),
    }
    return kept | {"bias": b} | names | {"versions": versions()}
