# SPDX-License-Identifier: Apache-2.0
"""What can be set: ``methods.yaml`` has the defaults, what else a key may be, the methods and the tasks.

Keys that prime_ext has too keep name and meaning.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from prime_ext.config.checks import SettingsError, choice, number, whole_number

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
        settings[key] = _checked(key, str(value), type(DEFAULTS[key]))
    if settings["prm.lora_rank"] and settings["prm.trainable_layers"]:
        raise SettingsError("prm.lora_rank trains an adapter of all layers; it wants prm.trainable_layers=0")
    if settings["prm.update_mode"] == "interleaved" and settings["prm.groups"] == "mixed":
        raise SettingsError("prm.update_mode=interleaved scores what it trains on; prm.groups=mixed leaves some out")
    return settings


def _checked(key: str, text: str, kind: type) -> Any:
    if kind is bool:
        choice(key, text.lower(), ("true", "false"))
        return text.lower() == "true"
    try:
        value = kind(text)
    except ValueError:
        raise SettingsError(f"{key}={text} must be a {'whole number' if kind is int else 'number'}") from None
    if kind is int:
        whole_number(key, value, LEAST.get(key, 0))
    elif kind is float:
        number(key, value, LEAST.get(key, 0), 1.0 if key in SHARES else math.inf)
    elif key in CHOICES:
        choice(key, value, tuple(CHOICES[key]))
    return value
