# SPDX-License-Identifier: Apache-2.0
"""A run's method in texts: its variant, and the keys that differ from it. No torch."""

import json
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.compose import compose_defaults
from prime_ext.config.verl_keys import walk_items
from prime_ext.methods.settings import prm_section
from prime_ext.methods.variants import VARIANTS

# Keys of models and engines, which belong to a run and not to its variant.
_OF_RUN = ("prm.model.", "prm.engine.", "prm.optim.", "prm.checkpoint.", "prm.infer_", "reward.")

# Methods that no variant chooses.
_NOT_IN_VARIANTS: dict[str, Any] = {"prime.turns": None, "prime.sources": {}}


def read_keys(variant: str) -> dict[str, Any]:
    """Return a variant's dotted keys and their values, from the table and its chosen sections."""
    composed = OmegaConf.create(compose_defaults("prime_trainer", (f"variant={variant}",))[0])
    process = composed.prime.process
    anchor = composed.prime.anchor
    prm = prm_section(composed)
    chosen = {"prime": {"process": process, "anchor": anchor}} | (
        {} if prm is None else {"prm": prm}
    )
    merged = OmegaConf.create(chosen)
    for key, value in VARIANTS[variant].values.items():
        OmegaConf.update(merged, key, value, force_add=True)
    items = walk_items(OmegaConf.to_container(merged))  # type: ignore[arg-type]
    keys = {key: value for key, value in items if not isinstance(value, dict)}
    return {
        key: value
        for key, value in keys.items()
        if "${" not in str(value) and not key.startswith(_OF_RUN)
    }


def method_name(config: DictConfig) -> str:
    """Return the method of a run: ``PRIME-D, variant distilled``."""
    return f"{VARIANTS[config.prime.variant].title}, variant {variant_line(config)}"


def variant_line(config: DictConfig) -> str:
    """Return a run's variant and changed keys: ``guarded (changed: prime.whitening=false)``."""
    variant = config.prime.variant
    changed = []
    for key, expected in (_NOT_IN_VARIANTS | read_keys(variant)).items():
        value = OmegaConf.select(config, key)
        if value != expected:
            if not isinstance(value, str):
                value = json.dumps(value, default=OmegaConf.to_container)
            changed.append(f"{key}={value}")
    return f"{variant} (changed: {', '.join(changed)})" if changed else variant
