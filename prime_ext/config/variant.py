# SPDX-License-Identifier: Apache-2.0
"""Variants of PRIME: which one a run is, and what was changed of it. Nothing here imports verl or torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

_FOLDER = Path(__file__).parent
VARIANTS = tuple(sorted(path.stem for path in (_FOLDER / "variant").glob("*.yaml")))
_OF_VERL = ("prm.model.", "prm.engine.", "prm.optim.", "prm.checkpoint.", "prm.infer_", "prm.accuracy_freq", "reward.")


def keys_of(variant: str) -> dict[str, Any]:
    """The keys that define one of :data:`VARIANTS`, with dots, and their values."""
    own = OmegaConf.load(_FOLDER / "variant" / f"{variant}.yaml")
    assert isinstance(own, DictConfig)
    chosen = {"prime/process": "kl", "prime/anchor": "none", "prm": "implicit_prm"}
    for entry in own.pop("defaults", []):
        if entry != "_self_":
            chosen |= {
                group.removeprefix("override /"): name for group, name in entry.items() if group.startswith("override")
            }
    if chosen["prime/process"] in ("none", "step_scorer"):
        # Nothing reads it.
        del chosen["prm"]
    sections = [_load(group, name) for group, name in chosen.items()]
    merged = OmegaConf.to_container(OmegaConf.merge(*sections, own))
    assert isinstance(merged, dict)
    known = {key: value for key, value in _flat(merged, "").items() if "${" not in str(value)}
    return {key: value for key, value in known.items() if not key.startswith(_OF_VERL)}


def _load(group: str, name: str) -> DictConfig:
    """Load a file of a group and those that it includes from the same group, in its place in the configuration."""
    content = OmegaConf.load(_FOLDER / group / f"{name}.yaml")
    included = [entry for entry in content.pop("defaults", []) if isinstance(entry, str) and entry != "_self_"]
    sections = [_load(group, entry) for entry in included]
    for part in reversed(() if name == "none" else group.split("/")):
        content = OmegaConf.create({part: content})
    if name == "none":
        content = OmegaConf.create({"prime": content})
    return OmegaConf.merge(*sections, content)


def variant_line(config: DictConfig) -> str:
    """The variant of a run, and its keys that have another value: ``guarded (changed: prime.whitening=false)``."""
    variant, changed = config.prime.variant, []
    for key, value in keys_of(variant).items():
        found = OmegaConf.select(config, key)
        if found != value:
            changed.append(f"{key}={found if isinstance(found, str) else json.dumps(found)}")
    return f"{variant} (changed: {', '.join(changed)})" if changed else variant


def _flat(section: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for name, value in section.items():
        keys |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return keys
