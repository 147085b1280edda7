# SPDX-License-Identifier: Apache-2.0
"""The stages that settings can name.

A further stage is one more line in :data:`STAGES`: a :class:`~data_preprocessing.stage_kind.StageKind` says what its
options are, what it can remove and how it is made, and the rest (settings, parts, resuming, processes, reports) comes
with it. Stages that ask a language model set ``one_process`` and answer a part at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_preprocessing.check_solutions import CHECK_SOLUTIONS
from data_preprocessing.code_problem import CodeProblem
from data_preprocessing.code_rules import CODE_ALWAYS, CODE_RULES, code_filter
from data_preprocessing.code_tests import NO_TESTS, SizeLimits, within_limits
from data_preprocessing.decontaminate import DECONTAMINATE
from data_preprocessing.deduplicate import DEDUPLICATE
from data_preprocessing.math_problem import MathProblem
from data_preprocessing.math_rules import ALWAYS, RULES, rule_filter
from data_preprocessing.stage import Stage, each, first_removal
from data_preprocessing.stage_kind import StageKind


@dataclass(frozen=True)
class MathRuleOptions:
    """Options of the rule filter of math: which rules, for training problems; some always apply."""

    rules: tuple[str, ...] = tuple(RULES)

    def __post_init__(self) -> None:
        _known(self.rules, RULES)


@dataclass(frozen=True)
class CodeRuleOptions:
    """Options of the rule filter of code: which rules, for training problems; some always apply."""

    rules: tuple[str, ...] = tuple(CODE_RULES)

    def __post_init__(self) -> None:
        _known(self.rules, CODE_RULES)


def _known(rules: Sequence[str], known: Mapping[str, Any]) -> None:
    for name in rules:
        if name not in known:
            raise ValueError(f"rules has {name!r}, which is none of {', '.join(known)}")


def _by_split(make: Any, rules: Sequence[str], always: Sequence[str]) -> Stage:
    """Benchmarks stay as published but for rows that are of no use."""
    chosen, others = make((*rules, *always)), make(always)
    return first_removal(lambda problem: (chosen if problem.split == "train" else others)(problem))


def _meanings(rules: Mapping[str, Any], chosen: Sequence[str]) -> dict[str, str]:
    return {name: rule.meaning for name, rule in rules.items() if name in chosen}


def _math_rules(options: MathRuleOptions, plan: Path | None) -> Stage:
    return _by_split(rule_filter, options.rules, ALWAYS)


def _code_rules(options: CodeRuleOptions, plan: Path | None) -> Stage:
    return _by_split(code_filter, options.rules, CODE_ALWAYS)


def _code_tests(options: SizeLimits, plan: Path | None) -> Stage:
    return each(within_limits(options))


_KINDS = (
    StageKind(
        name="math_rules",
        title="the rule filter of math",
        of=(MathProblem,),
        options=MathRuleOptions,
        rules=lambda options: _meanings(RULES, (*options.rules, *ALWAYS)),
        make=_math_rules,
    ),
    StageKind(
        name="code_rules",
        title="the rule filter of code",
        of=(CodeProblem,),
        options=CodeRuleOptions,
        rules=lambda options: _meanings(CODE_RULES, (*options.rules, *CODE_ALWAYS)),
        make=_code_rules,
    ),
    StageKind(
        name="code_tests",
        title="cut, repeated, too large and too many tests",
        of=(CodeProblem,),
        options=SizeLimits,
        rules=lambda options: {NO_TESTS: f"fewer than {options.least_tests} tests are left"},
        make=_code_tests,
    ),
    DEDUPLICATE,
    DECONTAMINATE,
    CHECK_SOLUTIONS,
)
STAGES = {kind.name: kind for kind in _KINDS}
