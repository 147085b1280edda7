# SPDX-License-Identifier: Apache-2.0
"""Checks of values one by one, for settings without types. Each returns the value, or raises :class:`Wrong`."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prime_ext.tasks.checked import Wrong
from prime_ext.tasks.task import SPLITS

__all__ = ["Wrong", "by_split", "list_of", "mapping", "number_of", "text_of", "texts_of"]


def mapping(value: Any, key: str, known: Sequence[str] = (), needed: Sequence[str] = ()) -> Mapping[str, Any]:
    """A mapping with string keys, of which some may be prescribed."""
    if not isinstance(value, Mapping) or not value:
        raise Wrong(f"{key} must be a mapping that is not empty, got {value!r}")
    for name in value:
        if not isinstance(name, str):
            raise Wrong(f"{key}: the key {name!r} must be a text; put it in quotes")
        if known and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise Wrong(f"{key} has no key {name!r}; {f'did you mean {near[0]}?' if near else ', '.join(known)}")
    for name in needed:
        if name not in value:
            raise Wrong(f"{key} needs the key {name!r}")
    return value


def text_of(value: Any, key: str) -> str:
    """A text with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise Wrong(f"{key} must be a text that is not empty, got {value!r}")
    return value


def list_of(value: Any, key: str) -> list[Any]:
    """A list with something in it."""
    if not isinstance(value, list) or not value:
        raise Wrong(f"{key} must be a list that is not empty, got {value!r}")
    return value


def texts_of(value: Any, key: str) -> tuple[str, ...]:
    """A text or several, without repetition."""
    texts = tuple(text_of(item, key) for item in ([value] if isinstance(value, str) else list_of(value, key)))
    if len(set(texts)) < len(texts):
        raise Wrong(f"{key} has the same text twice: {', '.join(texts)}")
    return texts


def by_split(value: Any, key: str, check: Callable[[Any, str], Any]) -> dict[str, Any]:
    """A value for some of the splits."""
    return {split: check(item, f"{key}.{split}") for split, item in mapping(value, key, known=SPLITS).items()}


def number_of(value: Any, key: str, low: float, high: float, whole: bool = True) -> Any:
    """A number in a range."""
    right = isinstance(value, int) if whole else isinstance(value, (int, float))
    if not right or isinstance(value, bool) or not low <= value <= high:
        raise Wrong(f"{key} must be a {'whole ' if whole else ''}number from {low:g} to {high:g}, got {value!r}")
    return value
