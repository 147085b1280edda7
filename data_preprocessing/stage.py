# SPDX-License-Identifier: Apache-2.0
"""What a stage of the pipeline is: a function over problems that says of each whether it stays or why it goes.

A stage gets problems in order and answers with as many results in the same order: the problem itself, a
:class:`Changed` one, or a :class:`Removal`. It is pure: what it answers depends on the problems (and, for stages that
survey all rows first, on the survey) and on its options alone, so that parts can be worked at in any order and process.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
Stage = Callable[[Sequence[Any]], Sequence[Result]]


def first_removal(function: Callable[[Any], Removal | None]) -> Stage:
    """The stage of a filter that says why a problem goes, or None."""

    def stage(problems: Sequence[Any]) -> list[Result]:
        found = [function(problem) for problem in problems]
        return [problem if why is None else why for problem, why in zip(problems, found, strict=True)]

    return stage


@dataclass(frozen=True, slots=True)
class Item:
    """A problem and its place: the name of its source, its file and the number of its row there."""

    source: str
    file: str
    row: int
    problem: Problem

    def line(self) -> str:
        """As a line of a file; :func:`read_items` reads it."""
        fields = asdict(self.problem)  # type: ignore[call-overload]
        return json.dumps({"source": self.source, "file": self.file, "row": self.row, "problem": fields}) + "\n"


def read_items(path: Path) -> Iterator[Item]:
    """The problems of a file of lines."""
    with path.open(encoding="utf-8") as lines:
        for found in map(json.loads, lines):
            # JSON knows no tuples.
            fields = {key: tuple(v) if isinstance(v, list) else v for key, v in found["problem"].items()}
            yield Item(found["source"], found["file"], found["row"], SOURCES[found["source"]].kind(**fields))


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


@dataclass(frozen=True)
class StageKind:
    """A stage by name, for :data:`data_preprocessing.steps.STAGES`.

    Attributes:
        name: in settings.
        title: what it does, in a line.
        of: the classes of the problems that it looks at; others pass by.
        options: a frozen dataclass that pydantic checks: its fields are the keys in settings, with their defaults.
        rules: what the stage can remove with these options, in order: names that no other stage uses, and meanings.
        make: the stage. Its second argument is the file that the survey wrote, or None.
        survey: looks at all rows before the first part is worked at and writes what the stage has to know to a file;
            None where the stage looks at one problem at a time.
        one_process: the stage brings its own processes or threads; its parts are not divided among workers.
        close: ends what the stage keeps between parts.
        used: lines for the report on what the survey found beside the rows.
    """

    name: str
    title: str
    of: tuple[type, ...]
    options: type
    rules: Callable[[Any], Mapping[str, str]]
    make: Callable[[Any, Path | None], Stage]
    survey: Callable[[Any, Rows, Path], None] | None = None
    one_process: bool = False
    close: Callable[[], None] | None = None
    used: Callable[[Path], list[str]] | None = None
