# SPDX-License-Identifier: Apache-2.0
"""Variants of PRIME: which one a run is, and what was changed of it. Nothing here imports verl or torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

_FOLDER = Path(__file__).parent / "variant"
VARIANTS = tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def keys_of(variant: str) -> dict[str, Any]:
    """The keys that define one of :data:`VARIANTS`, with dots, and their values."""
    section = OmegaConf.to_container(OmegaConf.load(_FOLDER / f"{variant}.yaml"))
    assert isinstance(section, dict)
    keys: dict[str, Any] = {}
    for base in section.pop("defaults", []):
        # Others are sections.
        keys |= keys_of(base) if base in VARIANTS else {}
    return keys | _flat(section, "")


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
