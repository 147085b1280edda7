# SPDX-License-Identifier: Apache-2.0
"""What a stage of the pipeline is: it says of every problem whether it stays, how it is changed, or why it goes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BeforeValidator

from data_preprocessing.code_sources import CODE_SOURCES
from data_preprocessing.math_sources import MATH_SOURCES
from data_preprocessing.row_source import Problem, Source

SOURCES: dict[str, Source] = {**MATH_SOURCES, **CODE_SOURCES}
# Of options that are lists: one text stands for a list of one.
LISTED = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)


@dataclass(frozen=True)
class Removal:
    """Why a problem goes: the name of the rule, what it saw, and what else ``removed.jsonl`` should say."""

    rule: str
    evidence: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Changed:
    """A problem that stays, and what was done to it or is to be counted about it, by name."""

    problem: Any
    notes: Mapping[str, int]


Result = Any  # a problem, Changed or Removal


@dataclass(frozen=True, slots=True)
class Item:
    """A problem and its place: the name of its source, its file and the number of its row there."""

    source: str
    file: str
    row: int
    problem: Problem

    def json(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in ("source", "file", "row")}, "problem": asdict(self.problem)}  # type: ignore[call-overload]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Item":
        """What :meth:`json` has written."""
        # JSON knows no tuples.
        fields = {key: tuple(v) if isinstance(v, list) else v for key, v in found["problem"].items()}
        return cls(found["source"], found["file"], found["row"], SOURCES[found["source"]].kind(**fields))


def read_items(path: Path) -> Iterator[Item]:
    """The problems of a file of lines."""
    with path.open(encoding="utf-8") as lines:
        yield from map(Item.of, map(json.loads, lines))


@dataclass(frozen=True)
class Rows:
    """All problems that reach a stage, for its survey.

    ``identity``, as JSON, decides about these rows; ``folder`` keeps what an interrupted run should find again.
    """

    parts: Sequence[Path]
    folder: Path
    identity: Any
    workers: int
    data_dir: Path | None = None

    def __iter__(self) -> Iterator[Item]:
        for path in self.parts:
            yield from read_items(path)


class Stage:
    """A stage: a frozen dataclass that pydantic checks; its fields are the keys in settings, with their defaults.

    It is pure: what it answers depends on the problems, its options and, if it surveys all rows first, on the survey
    alone, so that parts can be worked at in any order and process. ``plan`` is the file of the survey.

    Attributes:
        name: in settings.
        title: what it does, in a line.
        of: the classes of the problems that it looks at; others pass by.
        surveys: :meth:`survey` looks at all rows before the first part is worked at.
        one_process: it brings its own processes or threads; its parts are not divided among workers.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    of: ClassVar[tuple[type, ...]]
    surveys: ClassVar[bool] = False
    one_process: ClassVar[bool] = False

    def meanings(self) -> Mapping[str, str]:
        """What it can remove with these options, in order: names of rules that no other stage uses, and meanings."""
        raise NotImplementedError

    def result(self, problem: Any, plan: Path | None) -> Result:
        """What becomes of a problem."""
        raise NotImplementedError

    def results(self, problems: Sequence[Any], plan: Path | None) -> Sequence[Result]:
        """What becomes of the problems of a part, in order."""
        return [self.result(problem, plan) for problem in problems]

    def survey(self, rows: Rows, plan: Path) -> None:
        """Write down what :meth:`results` has to know of all rows."""

    def used(self, plan: Path) -> list[str]:
        """Lines for the report on what the survey found beside the rows."""
        return []

    def close(self) -> None:
        """End what the stage keeps between parts."""
