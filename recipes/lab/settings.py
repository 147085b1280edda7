# SPDX-License-Identifier: Apache-2.0
"""What can be set: ``methods.yaml`` has the defaults, what else a key may be, the methods and the tasks.

Keys that prime_ext has too keep name and meaning.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, FiniteFloat

from prime_ext.config.checks import SettingsError, read

FILE = yaml.safe_load((Path(__file__).parent / "methods.yaml").read_text())
DEFAULTS, CHOICES, LEAST, SHARES = (FILE[name] for name in ("defaults", "choices", "least", "shares"))
METHODS: dict[str, dict[str, Any]] = FILE["methods"]


def settings_of(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults, overridden by the values of the layers, which may be text; later layers win.

    Raises:
        SettingsError: a key is unknown, or a value does not have the type of its default or cannot work.
    """
    settings = dict(DEFAULTS)
    for key, value in (item for layer in layers for item in layer.items()):
        if key not in DEFAULTS:
            raise SettingsError(f"unknown key {key}; known keys: {', '.join(DEFAULTS)}")
        settings[key] = read(_kind(key), value, key)
    if settings["prm.lora_rank"] and settings["prm.trainable_layers"]:
        raise SettingsError("prm.lora_rank trains an adapter of all layers; it wants prm.trainable_layers=0")
    if settings["prm.update_mode"] == "interleaved" and settings["prm.groups"] == "mixed":
        raise SettingsError("prm.update_mode=interleaved scores what it trains on; prm.groups=mixed leaves some out")
    return settings


def _kind(key: str) -> Any:
    """The type of a setting, for pydantic, which also reads text."""
    default = DEFAULTS[key]
    if key in CHOICES:
        return Literal[tuple(CHOICES[key])]
    if isinstance(default, bool | str):
        return type(default)
    kind = int if isinstance(default, int) else FiniteFloat
    return Annotated[kind, Field(ge=LEAST.get(key, 0), le=1 if key in SHARES else None)]
