# SPDX-License-Identifier: Apache-2.0
"""Stages of the pipeline.

A stage is a frozen dataclass that pydantic checks; its fields are the keys in settings, with their
defaults. Its :meth:`Stage.run` gets the problems that the stage before it leaves and yields each
with a result: :class:`Removal`, :class:`Changed`, or None where nothing changes.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TextIO, TypeVar

from tqdm import tqdm

from .problem_sources import SourceProblem

# Characters shown on each side of what a rule sees.
AROUND = 30
Item = TypeVar("Item")


@dataclass(frozen=True)
class Removal:
    """Why a problem is removed: the rule, what it saw, and further fields for ``removed.jsonl``."""

    rule: str
    evidence: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Changed:
    """A problem that stays, and what the report counts about it, by name."""

    problem: Any
    notes: Mapping[str, int]


Result = Removal | Changed | None


@dataclass
class StageRun:
    """State that the stages of a run share.

    ``output`` and ``data_dir`` are folders, ``system`` is the system message, ``answer_format``
    says whether prompts name the form of the answer, and ``chunk_rows`` rows are processed
    together. ``compared`` collects lines for the report on what the rows were compared with,
    ``skipped`` the tasks that they were not; ``choice`` takes the multiple-choice rows.
    """

    output: Path
    system: str = ""
    answer_format: bool = True
    data_dir: Path | None = None
    chunk_rows: int = 5_000
    compared: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    choice: TextIO | None = None


def show_progress(rows: Iterable[Item], title: str) -> Iterable[Item]:
    """Return the rows with a bar of how many have passed."""
    return tqdm(rows, desc=title, unit=" rows", disable=not sys.stderr.isatty())  # type: ignore[no-any-return]


class Stage:
    """The base of all stages; :meth:`judge` judges problems of the class ``of``, others pass.

    ``name`` is the key in settings; ``title`` describes the stage in a line.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    of: ClassVar[type]

    def meanings(self) -> Mapping[str, str]:
        """Return the rules by which the stage removes problems, in order, with their meanings."""
        raise NotImplementedError

    def judge(self, problem: Any) -> Result:
        """Return the result for a problem."""
        raise NotImplementedError

    def run(
        self, problems: Iterator[SourceProblem], run: StageRun
    ) -> Iterator[tuple[SourceProblem, Result]]:
        """Yield every problem with its result, in order."""
        for problem in problems:
            yield problem, self.judge(problem) if isinstance(problem, self.of) else None


# ---- rules ----


@dataclass(frozen=True)
class Rule:
    """A rule: its meaning, and a function of problem and text that returns evidence or None.

    With ``hints`` it applies only if the text in lower case contains one of them, which is quicker
    to check.
    """

    meaning: str
    find: Callable[[Any, str], str | None]
    hints: tuple[str, ...] = ("",)


def apply_rules(
    table: Mapping[str, Rule], names: Sequence[str], problem: SourceProblem, text: str
) -> Removal | None:
    """Apply the named rules in the table's order; return the removal by the first that matches."""
    lowered = text.lower()
    for name, rule in table.items():
        if name in names and any(hint in lowered for hint in rule.hints):
            evidence = rule.find(problem, text)
            if evidence is not None:
                return Removal(name, evidence)
    return None


class RuleStage(Stage):
    """The stage of a table: ``rules`` apply to training problems, ``always`` to all.

    Benchmarks stay as published, except for useless rows.
    """

    table: ClassVar[Mapping[str, Rule]]
    always: ClassVar[tuple[str, ...]]
    rules: tuple[str, ...]

    def meanings(self) -> Mapping[str, str]:
        return {
            name: rule.meaning
            for name, rule in self.table.items()
            if name in (*self.rules, *self.always)
        }

    def judge(self, problem: Any) -> Result:
        names = (*self.rules, *self.always) if problem.split == "train" else self.always
        return apply_rules(self.table, names, problem, self.text(problem.problem))

    def text(self, problem: str) -> str:
        """Return the text that the rules look at."""
        return problem


def show_around(text: str, match: re.Match[str]) -> str:
    """Return a match with a little of the text around it."""
    return text[max(match.start() - AROUND, 0) : match.end() + AROUND].strip()


def search(pattern: re.Pattern[str], text: str) -> str | None:
    """Return the first match of a pattern with the text around it, or None."""
    match = pattern.search(text)
    return None if match is None else show_around(text, match)
