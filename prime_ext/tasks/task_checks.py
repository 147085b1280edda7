# SPDX-License-Identifier: Apache-2.0
"""Checks of the values in a task file. Each returns the value, or raises :class:`Wrong` with the key that holds it."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prime_ext.tasks.task import SPLITS


class Wrong(ValueError):
    """What is wrong with a key; whoever read the file adds its name."""


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


def pattern_of(value: Any, key: str) -> str:
    """A regular expression."""
    try:
        re.compile(text_of(value, key))
    except re.error as error:
        raise Wrong(f"{key} is no regular expression: {error}: {value!r}") from error
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


def paths_of(value: Any, key: str) -> tuple[str, ...]:
    """Files below a folder."""
    for name in texts_of(value, key):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise Wrong(f"{key} must be a path below the data folder, got {name!r}")
    return texts_of(value, key)


def addresses_of(value: Any, key: str) -> tuple[str, ...]:
    """Files on the web."""
    for address in texts_of(value, key):
        if not address.startswith("https://") or not address.rpartition("/")[2]:
            raise Wrong(f"{key} must be the https address of a file, got {address!r}")
    return texts_of(value, key)


def range_of(value: Any, key: str) -> tuple[str, str]:
    """The first and the last of a range of texts."""
    ends = tuple(text_of(item, key) for item in list_of(value, key))
    if len(ends) != 2 or ends[0] > ends[1]:
        raise Wrong(f"{key} must be the first and the last, got {value!r}")
    return ends[0], ends[1]


def by_split(value: Any, key: str, check: Callable[[Any, str], Any]) -> dict[str, Any]:
    """A value for some of the splits."""
    return {split: check(item, f"{key}.{split}") for split, item in mapping(value, key, known=SPLITS).items()}


def number_of(value: Any, key: str, low: float, high: float, whole: bool = True) -> Any:
    """A number in a range."""
    right = isinstance(value, int) if whole else isinstance(value, (int, float))
    if not right or isinstance(value, bool) or not low <= value <= high:
        raise Wrong(f"{key} must be a {'whole ' if whole else ''}number from {low:g} to {high:g}, got {value!r}")
    return value
