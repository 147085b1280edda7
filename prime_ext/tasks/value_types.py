# SPDX-License-Identifier: Apache-2.0
"""Types of values in YAML files and rows, in addition to :mod:`prime_ext.config.checks`."""

from pathlib import PurePath
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field


def is_whole(text: str) -> bool:
    """Return whether a text can be written as UTF-8, unlike some escapes of JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_text(text: str) -> str:
    if not is_whole(text):
        raise ValueError("must not have half a character (a lone surrogate)")
    if not text.strip():
        raise ValueError("must be a text that is not empty")
    return text


def _check_different(texts: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(texts)) < len(texts) or not texts:
        raise ValueError("must be a text or a list of different texts")
    return texts


def _check_path_below(name: str) -> str:
    if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise ValueError("must be a path below the data folder")
    return name


Text = Annotated[str, Field(strict=True), AfterValidator(_check_text)]
Path = Annotated[Text, AfterValidator(_check_path_below)]
# One of them may stand without a list.
LISTED = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
Texts = Annotated[tuple[Text, ...], LISTED, AfterValidator(_check_different)]
Paths = Annotated[tuple[Path, ...], LISTED, AfterValidator(_check_different)]
