# SPDX-License-Identifier: Apache-2.0
"""Types of values in YAML files, and one line for a value that is wrong."""

import re
from pathlib import PurePath
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from prime_ext.config.checks import explain

# The __pydantic_config__ of a dataclass without other keys than its fields.
NO_OTHER_KEYS = ConfigDict(extra="forbid")
T = TypeVar("T")


class Wrong(ValueError):
    """A wrong key; the caller adds the name of the file."""


def checked(adapter: TypeAdapter[T], content: Any) -> T:
    """Return the content of a file as the dataclass of the adapter. ``Wrong``: one line about the first wrong key."""
    if not isinstance(content, dict):
        raise Wrong(f"the file must be a mapping that is not empty, got {content!r}")
    for key in content:
        if not isinstance(key, str):
            raise Wrong(f"the key {key!r} must be a text; put it in quotes")
    try:
        return adapter.validate_python(content)
    except ValidationError as error:
        raise Wrong(explain(error, adapter)[0]) from error


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must be a text that is not empty")
    return text


def _regular_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"must be a regular expression ({error})") from error
    return text


def _different(texts: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(texts)) < len(texts) or not texts:
        raise ValueError("must be a text or a list of different texts")
    return texts


def _below_a_folder(name: str) -> str:
    if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise ValueError("must be a path below the data folder")
    return name


Text = Annotated[str, Field(strict=True), AfterValidator(_not_blank)]
Pattern = Annotated[Text, AfterValidator(_regular_expression)]
Path = Annotated[Text, AfterValidator(_below_a_folder)]
Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Number = Annotated[float, Field(strict=True)]
# One of them may stand without a list.
_LISTED = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
Texts = Annotated[tuple[Text, ...], _LISTED, AfterValidator(_different)]
Paths = Annotated[tuple[Path, ...], _LISTED, AfterValidator(_different)]
