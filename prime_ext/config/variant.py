# SPDX-License-Identifier: Apache-2.0
"""Variants of PRIME: the variant of a run, and its changed keys. Nothing here imports torch."""

import json
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.compose import compose_defaults
from prime_ext.config.settings import VARIANTS_FOLDER, prm_section
from prime_ext.config.verl_keys import walk_items

# Names of the variants in texts.
METHODS = {
    "distilled": "PRIME-D",
    "guarded": "PRIME with a reliability gate",
    "on_policy_distillation": "on-policy distillation",
    "paper": "PRIME",
    "pspo_wrs": "PSPO-WRS",
    "rloo": "RLOO",
    "step_scorer": "RLOO with a step reward model",
}
# Keys of models and engines, which belong to a run and not to its variant.
_OF_RUN = ("prm.model.", "prm.engine.", "prm.optim.", "prm.checkpoint.", "prm.infer_", "reward.")


def read_keys(variant: str) -> dict[str, Any]:
    """Return a variant's dotted keys and their values, from its file and its chosen sections."""
    composed = OmegaConf.create(compose_defaults("prime_trainer", (f"variant={variant}",))[0])
    process = composed.prime.process
    anchor = composed.prime.anchor
    prm = prm_section(composed)
    file_keys = OmegaConf.load(VARIANTS_FOLDER / f"{variant}.yaml")
    chosen = {"prime": {"process": process, "anchor": anchor}} | (
        {} if prm is None else {"prm": prm}
    )
    merged = OmegaConf.to_container(
        OmegaConf.merge(chosen, {key: file_keys[key] for key in file_keys if key != "defaults"})
    )
    keys = {key: value for key, value in walk_items(merged) if not isinstance(value, dict)}
    return {
        key: value
        for key, value in keys.items()
        if "${" not in str(value) and not key.startswith(_OF_RUN)
    }


def method_name(config: DictConfig) -> str:
    """Return the method of a run: ``PRIME-D, variant distilled``, or PSPO-WRS."""
    if "prime" not in config:
        return "PSPO-WRS"
    return f"{METHODS[config.prime.variant]}, variant {variant_line(config)}"


def variant_line(config: DictConfig) -> str:
    """Return a run's variant and changed keys: ``guarded (changed: prime.whitening=false)``."""
    variant = config.prime.variant
    changed = []
    for key, expected in read_keys(variant).items():
        value = OmegaConf.select(config, key)
        if value != expected:
            if not isinstance(value, str):
                value = json.dumps(value, default=OmegaConf.to_container)
            changed.append(f"{key}={value}")
    return f"{variant} (changed: {', '.join(changed)})" if changed else variant
