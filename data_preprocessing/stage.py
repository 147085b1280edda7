# SPDX-License-Identifier: Apache-2.0
"""What a stage of the pipeline is: it says of every problem whether it stays, how it is changed, or why it goes."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import AfterValidator, BeforeValidator

from data_preprocessing.code_sources import CODE_SOURCES
from data_preprocessing.math_sources import MATH_SOURCES
from data_preprocessing.row_source import Problem, Source

SOURCES: dict[str, Source] = {**MATH_SOURCES, **CODE_SOURCES}
# Of options that are lists: one text stands for a list of one.
LISTED = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
# Characters shown on each side of what a rule has found.
AROUND = 30


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
Filter = Callable[[Any], Removal | None]


def restored(found: Mapping[str, Any]) -> Problem:
    """A problem from its fields as JSON, which knows no tuples."""
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
    return SOURCES[found["source"]].kind(**fields)  # type: ignore[no-any-return]


def read_problems(path: Path) -> Iterator[Problem]:
    """The problems of a file of lines."""
    with path.open(encoding="utf-8") as lines:
        yield from map(restored, map(json.loads, lines))


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

    def __iter__(self) -> Iterator[Problem]:
        for path in self.parts:
            yield from read_problems(path)


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


# ---- rules ----


@dataclass(frozen=True)
class Rule:
    """One rule of a table, in which it has its name of settings and reports.

    Attributes:
        meaning: what it removes.
        find: what the rule sees in a problem and its text, or None.
        hints: the rule can apply only where one of these is in the text in lower case; empty: anywhere.
    """

    meaning: str
    find: Callable[[Any, str], str | None]
    hints: tuple[str, ...] = ()


def one_of(table: Mapping[str, Rule]) -> AfterValidator:
    """The check of a rule's name in settings."""

    def known(name: str) -> str:
        if name not in table:
            raise ValueError(f"must be one of {', '.join(table)}")
        return name

    return AfterValidator(known)


def rule_filter(table: Mapping[str, Rule], names: Sequence[str], text_of: Callable[[str], str] = str) -> Filter:
    """The filter that removes what one of the named rules, in the order of the table, applies to.

    ``text_of`` makes the text that the rules look at of a problem's.
    """
    rules = [(name, rule) for name, rule in table.items() if name in names]

    def removal(problem: Any) -> Removal | None:
        text = text_of(problem.problem)
        lowered = text.lower()
        for name, rule in rules:
            if rule.hints and not any(hint in lowered for hint in rule.hints):
                continue
            found = rule.find(problem, text)
            if found is not None:
                return Removal(name, found)
        return None

    return removal


class RuleStage(Stage):
    """The stage of a table: ``rules`` apply to training problems, ``always`` to all.

    Benchmarks stay as published but for rows that are of no use.
    """

    table: ClassVar[Mapping[str, Rule]]
    always: ClassVar[tuple[str, ...]]
    rules: tuple[str, ...]

    def text(self, problem: str) -> str:
        """The text that the rules look at."""
        return problem

    def meanings(self) -> Mapping[str, str]:
        return {name: rule.meaning for name, rule in self.table.items() if name in (*self.rules, *self.always)}

    def results(self, problems: Sequence[Any], plan: Path | None) -> list[Result]:
        train, others = (
            rule_filter(self.table, names, self.text) for names in ((*self.rules, *self.always), self.always)
        )
        return [(train if problem.split == "train" else others)(problem) or problem for problem in problems]


def around(text: str, match: re.Match[str]) -> str:
    """What was found, with a little of what stands before and behind it."""
    return text[max(match.start() - AROUND, 0) : match.end() + AROUND].strip()


def searched(pattern: re.Pattern[str], text: str) -> str | None:
    """The first place of a pattern and what is around it, or None."""
    match = pattern.search(text)
    return None if match is None else around(text, match)
