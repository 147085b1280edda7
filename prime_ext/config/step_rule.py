# SPDX-License-Identifier: Apache-2.0
"""The value of ``prime.steps``: the rule that finds the steps of a response. No torch."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import regex
from pydantic import AfterValidator, BeforeValidator, Field, StrictInt
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT, EscapedText, Text
from prime_ext.names import TextSplitter


def _compiles(pattern: str) -> str:
    try:
        regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    return pattern


@dataclass(frozen=True, config=STRICT)
class StepSettings:
    """Rule that finds steps: a splitter's name, a pattern or delimiters; one of them is set."""

    may_omit: ClassVar[bool] = True

    splitter: TextSplitter | None = None
    pattern: Annotated[Text, AfterValidator(_compiles)] | None = None
    delimiters: (
        Annotated[tuple[EscapedText, ...] | tuple[StrictInt, ...], Field(min_length=1)] | None
    ) = None

    @property
    def name(self) -> str:
        """Return the name for ``prime_ext.step_rm.splitting.split_steps``."""
        return self.splitter or ("delimiters" if self.pattern is None else "pattern")


def _read_steps(value: Any) -> Any:
    if isinstance(value, str):
        return {"splitter": value}
    if isinstance(value, Mapping) and (len(value) != 1 or "splitter" in value):
        raise ValueError("must be the name of a splitter, {pattern: ...} or {delimiters: [...]}")
    return value


# The value of prime.steps.
Steps = Annotated[StepSettings, BeforeValidator(_read_steps)]
