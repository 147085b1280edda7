# SPDX-License-Identifier: Apache-2.0
"""The rule filter of code RL: problems that a text-only policy cannot be asked, or whose tests can judge no program."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from data_preprocessing.code_problem import CodeProblem
from data_preprocessing.math_rules import MAX_CHARACTERS
from data_preprocessing.rule_table import chosen_rules, searched
from data_preprocessing.stage import Removal

_IMAGE = re.compile(
    r"<img\b|<image>|!\[[^\]\n]{0,200}\]\(|\\includegraphics|\[image\]|\b\S{1,200}\.(?:png|jpe?g|gif|svg|bmp)\b"
    r"|\b(?:picture|figure|image|diagram)s?\s+(?:is\s+|are\s+)?(?:shown\s+|given\s+)?(?:below|above)\b"
    r"|\b(?:in|see|on)\s+the\s+(?:picture|figure|image|diagram)\b",
    re.IGNORECASE,
)
_INTERACTIVE = re.compile(
    r"\binteractive\s+(?:problem|task)\b|\b(?:problem|task)\s+is\s+interactive\b|\bfflush\b|\bstdout\.flush\b"
    r"|\bflush\s+(?:the\s+|your\s+)?(?:standard\s+)?(?:output|stdout|stream|buffer)\b|\binteractor\b",
    re.IGNORECASE,
)
_SEVERAL = re.compile(
    r"\bif\s+there\s+(?:are|is)\s+(?:multiple|several|many|more\s+than\s+one)\b[^.]{0,80}"
    r"\b(?:print|output|return|find|any)\b"
    r"|\b(?:print|output|return)\s+any\s+(?:one\s+)?of\s+(?:them|these|those|the)\b"
    r"|\byou\s+(?:may|can)\s+(?:print|output|return)\s+any\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class CodeRule:
    """One rule: its name, what it removes, and what it sees in a problem, or None."""

    name: str
    meaning: str
    find: Callable[[CodeProblem], str | None]


def _marked(problem: CodeProblem, mark: str, words: str) -> str | None:
    return words if mark in problem.marks else None


def _contradiction(problem: CodeProblem) -> str | None:
    """Two tests that no program passes both."""
    wanted: dict[str, str] = {}
    for given, expected in zip(problem.inputs, problem.outputs, strict=True):
        text = " ".join(str(expected).split())
        if wanted.setdefault(str(given).strip(), text) != text:
            return f"input {str(given)[:40]!r} has outputs {wanted[str(given).strip()][:40]!r} and {text[:40]!r}"
    return None


CODE_RULES = {
    rule.name: rule
    for rule in (
        CodeRule(
            "long_statement",
            f"a problem of more than {MAX_CHARACTERS:,} characters",
            lambda row: f"{len(row.problem)} characters" if len(row.problem) > MAX_CHARACTERS else None,
        ),
        CodeRule(
            "image",
            "shows or mentions a picture",
            lambda row: _marked(row, "picture", "picture_num") or searched(_IMAGE, row.problem),
        ),
        CodeRule(
            "interactive",
            "the program has to talk with a judge",
            lambda row: _marked(row, "interactive", "tag interactive") or searched(_INTERACTIVE, row.problem),
        ),
        CodeRule(
            "several_answers",
            "any of several answers is right, and the tests know one of them",
            lambda row: searched(_SEVERAL, row.problem),
        ),
        CodeRule(
            "files",
            "the program has to read or write files",
            lambda row: _marked(row, "file", "input_file or output_file"),
        ),
        CodeRule("unreadable_tests", "tests that cannot be read, or none", lambda row: row.unreadable or None),
        CodeRule("contradictory_tests", "two outputs for one input", _contradiction),
    )
}
# Apply to every split and whatever is chosen: without tests a row is of no use.
CODE_ALWAYS = ("unreadable_tests",)


def code_filter(names: Sequence[str]) -> Callable[[CodeProblem], Removal | None]:
    """The filter that removes what one of the rules, in the order of :data:`CODE_RULES`, applies to.

    Raises:
        KeyError: there is no such rule.
    """
    rules = chosen_rules(CODE_RULES, names)

    def stage(problem: CodeProblem) -> Removal | None:
        for rule in rules:
            found = rule.find(problem)
            if found is not None:
                return Removal(rule.name, found)
        return None

    return stage
