# SPDX-License-Identifier: Apache-2.0
"""What every section of the settings checks its values with. Nothing here imports verl or torch."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


class SettingsError(ValueError):
    """A configuration value that cannot work; the message is one line that says what would."""


def choice(key: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SettingsError(f"{key}={value!r} is not one of {', '.join(allowed)}")


def number(key: str, value: Any, low: float, high: float = math.inf, open_low: bool = False) -> None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or value > high or value < low or (open_low and value == low):
        bounds = f"{'>' if open_low else '>='} {low:g}" + (f" and <= {high:g}" if math.isfinite(high) else "")
        raise SettingsError(f"{key}={value!r} must be a number {bounds}")


def boolean(key: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise SettingsError(f"{key}={value!r} must be true or false")


def whole_number(key: str, value: Any, low: int, note: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise SettingsError(f"{key}={value!r} must be a whole number{note} >= {low}")


def build(cls: type[T], values: Mapping[str, Any], prefix: str, **more: Any) -> T:
    """An instance from the resolved section ``prefix``, which must have exactly the keys of the class.

    Args:
        cls: a dataclass.
        values: the section.
        prefix: its name, for messages.
        more: arguments that are no keys of the section.

    Raises:
        SettingsError: no section, an unknown or a missing key, or what the class itself finds.
    """
    if not isinstance(values, Mapping):
        raise SettingsError(f"{prefix}={values!r} must be a section with keys")
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - known)
    if unknown:
        raise SettingsError(f"unknown key {prefix}.{unknown[0]}; known keys: {', '.join(sorted(known))}")
    missing = sorted(known - set(values))
    if missing:
        raise SettingsError(f"key {prefix}.{missing[0]} is missing")
    return cls(**values, **more)
