# SPDX-License-Identifier: Apache-2.0
"""What the rule filters of math and of code share: a rule, the filter of several, and the stage of the pipeline."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import AfterValidator

from data_preprocessing.stage import Removal, Result, Stage

# Characters shown on each side of what was found.
AROUND = 30
Filter = Callable[[Any], Removal | None]


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: in settings and reports.
        meaning: what it removes.
        find: what the rule sees in a problem and its text, or None.
        hints: the rule can apply only where one of these is in the text in lower case; empty: anywhere.
    """

    name: str
    meaning: str
    find: Callable[[Any, str], str | None]
    hints: tuple[str, ...] = ()


def table_of(*rules: Rule) -> dict[str, Rule]:
    """Rules by name."""
    return {rule.name: rule for rule in rules}


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
    rules = [rule for name, rule in table.items() if name in names]

    def removal(problem: Any) -> Removal | None:
        text = text_of(problem.problem)
        lowered = text.lower()
        for rule in rules:
            if rule.hints and not any(hint in lowered for hint in rule.hints):
                continue
            found = rule.find(problem, text)
            if found is not None:
                return Removal(rule.name, found)
        return None

    return removal


class RuleStage(Stage):
    """The stage of a table: ``rules`` apply to training problems, ``always`` to all.

    Benchmarks stay as published but for rows that are of no use.
    """

    table: ClassVar[Mapping[str, Rule]]
    always: ClassVar[tuple[str, ...]]
    filter: ClassVar[Callable[[Sequence[str]], Filter]]
    rules: tuple[str, ...]

    def meanings(self) -> Mapping[str, str]:
        return {rule.name: rule.meaning for rule in self.table.values() if rule.name in (*self.rules, *self.always)}

    def results(self, problems: Sequence[Any], plan: Path | None) -> list[Result]:
        train, others = self.filter((*self.rules, *self.always)), self.filter(self.always)
        return [(train if problem.split == "train" else others)(problem) or problem for problem in problems]


def around(text: str, match: re.Match[str]) -> str:
    """What was found, with a little of what stands before and behind it."""
    return text[max(match.start() - AROUND, 0) : match.end() + AROUND].strip()


def searched(pattern: re.Pattern[str], text: str) -> str | None:
    """The first place of a pattern and what is around it, or None."""
    match = pattern.search(text)
    return None if match is None else around(text, match)
