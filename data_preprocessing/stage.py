# SPDX-License-Identifier: Apache-2.0
"""What a stage is: a function over problems that says of each whether it stays, as what, or why it goes.

A stage gets problems in order and answers with as many results in the same order: the problem itself, a
:class:`Changed` one, or a :class:`Removal`. It is pure: what it answers depends on the problems (and, for stages that
survey all rows first, on the survey) and on its options alone, so that parts can be worked at in any order and process.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Problem(Protocol):
    """What all problems have; see :class:`~data_preprocessing.math_problem.MathProblem` for what it means."""

    @property
    def data_source(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def problem(self) -> str: ...

    def gist(self) -> str:
        """The gold answer in a few words, for samples."""


@dataclass(frozen=True)
class Removal:
    """Why a problem goes.

    Attributes:
        rule: its name.
        evidence: what it saw.
        details: what else ``removed.jsonl`` should say.
    """

    rule: str
    evidence: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Changed:
    """A problem that stays, and what was done to it or is to be counted about it, by name."""

    problem: Any
    notes: Mapping[str, int]


Result = Any  # a problem, Changed or Removal
Stage = Callable[[Sequence[Any]], Sequence[Result]]


def each(function: Callable[[Any], Result]) -> Stage:
    """The stage that looks at one problem at a time."""
    return lambda problems: [function(problem) for problem in problems]


def first_removal(function: Callable[[Any], Removal | None]) -> Stage:
    """The stage of a filter that says why a problem goes, or None."""

    def stage(problems: Sequence[Any]) -> list[Result]:
        found = [function(problem) for problem in problems]
        return [problem if why is None else why for problem, why in zip(problems, found, strict=True)]

    return stage


def whole(text: str) -> str:
    """Half characters, which cannot be written, as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
