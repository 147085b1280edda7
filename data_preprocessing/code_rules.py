# SPDX-License-Identifier: Apache-2.0
"""The filters of code RL: which problems stay, and which of their tests.

:class:`CodeRules` removes problems that cannot be asked of a text-only policy, or whose tests
cannot judge a program. :class:`CodeTests` removes cut, repeated and too large tests, and those
beyond a limit.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import PositiveInt

from prime_ext.tasks.value_types import LISTED

from .code_sources import CodeProblem
from .math_rules import TOO_LONG
from .stages import Changed, Removal, Result, Rule, RuleStage, Stage, search

# Codeforces cuts long tests and ends them with an ellipsis; short ones may have their own.
_CUT_FROM = 200
NO_TESTS = "no_tests"
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


def _find_mark(problem: CodeProblem, mark: str, words: str) -> str | None:
    return words if mark in problem.marks else None


def _find_contradiction(problem: CodeProblem, text: str) -> str | None:
    """Describe two tests that no program can pass together; None without such a pair."""
    known: dict[str, str] = {}
    for value, expected in zip(problem.inputs, problem.outputs, strict=True):
        output = " ".join(str(expected).split())
        if known.setdefault(str(value).strip(), output) != output:
            return (
                f"input {str(value)[:40]!r} has outputs {known[str(value).strip()][:40]!r} and"
                f" {output[:40]!r}"
            )
    return None


CODE_RULES = {
    "long_statement": TOO_LONG,
    "image": Rule(
        "shows or mentions a picture",
        lambda row, text: _find_mark(row, "picture", "picture_num") or search(_IMAGE, text),
    ),
    "interactive": Rule(
        "the program has to talk with a judge",
        lambda row, text: (
            _find_mark(row, "interactive", "tag interactive") or search(_INTERACTIVE, text)
        ),
    ),
    "several_answers": Rule(
        "any of several answers is right, and the tests know one of them",
        lambda row, text: search(_SEVERAL, text),
    ),
    "files": Rule(
        "the program has to read or write files",
        lambda row, text: _find_mark(row, "file", "input_file or output_file"),
    ),
    "unreadable_tests": Rule(
        "tests that cannot be read, or none", lambda row, text: row.unreadable or None
    ),
    "contradictory_tests": Rule("two outputs for one input", _find_contradiction),
}
# These apply to every split, whatever is chosen: a row without tests is useless.
CODE_ALWAYS = ("unreadable_tests",)


@dataclass(frozen=True)
class CodeRules(RuleStage):
    """The rules that remove training problems; some always apply."""

    rules: Annotated[tuple[Literal[tuple(CODE_RULES)], ...], LISTED] = tuple(CODE_RULES)  # type: ignore[valid-type]

    name = "code_rules"
    title = "the rule filter of code"
    of = CodeProblem
    table = CODE_RULES
    always = CODE_ALWAYS


def spread_evenly(n: int, k: int) -> list[int]:
    """Return ``k`` evenly spread positions in ``n``, or all of them if ``n <= k``.

    They include the first and the last; with ``k = 1`` only the first.
    """
    if n <= k:
        return list(range(n))
    return [0] if k == 1 else [rank * (n - 1) // (k - 1) for rank in range(k)]


@dataclass(frozen=True)
class CodeTests(Stage):
    """Limits of a problem's tests, which ``settings/code.yaml`` describes."""

    most_tests: PositiveInt = 20
    most_bytes: PositiveInt = 20_000
    most_bytes_in_all: PositiveInt = 100_000
    least_tests: PositiveInt = 1

    name = "code_tests"
    title = "cut, repeated, too large and too many tests"
    of = CodeProblem

    def meanings(self) -> Mapping[str, str]:
        return {NO_TESTS: f"fewer than {self.least_tests} tests are left"}

    def judge(self, problem: CodeProblem) -> Result:
        kept, gone = self.choose(problem.inputs, problem.outputs)
        if len(kept) < self.least_tests:
            reasons = ", ".join(f"{name} {n}" for name, n in gone.items()) or "there are no others"
            return Removal(NO_TESTS, f"{len(kept)} of {len(problem.inputs)} tests left: {reasons}")
        if not gone:
            return None
        inputs, outputs = (
            tuple(texts[number] for number in kept) for texts in (problem.inputs, problem.outputs)
        )
        return Changed(replace(problem, inputs=inputs, outputs=outputs), gone)

    def choose(
        self, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[list[int], Counter[str]]:
        """Return the numbers of the tests that stay, and counts of the others by reason.

        The sources list the examples first, then tests in order of size or in no order. If there
        are too many, an even spread stays. If these are too large together, the largest go first,
        and of equal ones the later.
        """
        gone: Counter[str] = Counter()
        seen: set[str] = set()
        # Bytes of the tests that are left, by number.
        sizes: dict[int, int] = {}
        for number, pair in enumerate(zip(inputs, outputs, strict=True)):
            test_input = json.dumps(pair[0])
            size = len(json.dumps(pair).encode())
            if any(
                isinstance(text, str) and len(text) >= _CUT_FROM and text.rstrip().endswith("...")
                for text in pair
            ):
                gone["cut tests"] += 1
            elif test_input in seen:
                gone["repeated tests"] += 1
            elif size > self.most_bytes:
                gone["tests too large"] += 1
            else:
                seen.add(test_input)
                sizes[number] = size
        left = list(sizes)
        kept = [left[rank] for rank in spread_evenly(len(left), self.most_tests)]
        total = sum(sizes[number] for number in kept)
        for number in sorted(kept, key=lambda number: (-sizes[number], -number)):
            if total <= self.most_bytes_in_all:
                break
            kept.remove(number)
            total -= sizes[number]
        if len(kept) < len(left):
            gone["tests beyond the limits"] = len(left) - len(kept)
        return kept, gone
