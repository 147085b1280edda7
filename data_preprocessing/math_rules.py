# SPDX-License-Identifier: Apache-2.0
r"""The rule filter of math RL: problems that need more than text or cannot be judged.

It removes problems that cannot be asked of a text-only policy, or whose answer no verifier can
judge. Rules are pure functions; the first that applies removes a problem and records its evidence.
They follow the first stage of PRIME's data (arXiv 2502.01456, section on data), whose published
script looks for substrings. Where that is wrong ("records show that" does not ask for a proof,
"action figures" are not a figure, ``P(A), P(B), P(C)`` is not multiple choice, ``\underline{a}`` is
not a blank), these rules look closer, and never into the code of drawings.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from prime_ext.tasks.value_types import LISTED

from .grading import check_gold
from .math_sources import MathProblem
from .stages import AROUND, Rule, RuleStage, search, show_around

MAX_CHARACTERS = 20_000

# A drawing, not a toy or a guess: "the figure", "Figure 2", "figure ABCD", "figure shown".
_FIGURE = re.compile(
    r"\b(?:the|this|these|following|given|above|accompanying|adjoining|adjacent|shown|in)\s+(?:\d\s+)?figures?\b"
    r"|\bfigures?\s+(?:shown|below|above|\$|on\s+the|to\s+the|at\s+the)|\bfigure\s+\d"
    r"|\\includegraphics|!\[[^\]\n]{0,200}\]\(|<(?:img|image)\b",
    re.IGNORECASE,
)
_SHOWN = re.compile(
    r"\b(?:diagram|picture|image)s?\s+(?:is\s+)?(?:shown|below|above)\b"
    r"|\b(?:shown|see|in)\s+the\s+(?:diagram|picture|image)\b",
    re.IGNORECASE,
)
# "Show that" as a task, not "records show that".
_PROOF = re.compile(
    r"\bprove\b|(?:^|[.!?:;,)$\]}]\s*|\n|\b(?:and|to|then|also|please)\s+)show\s+that\b",
    re.IGNORECASE,
)
_BLANK = re.compile(
    r"\\underline\s*\{(?:\s|~|_|\(\d\)|\\[ ,;:!_]|\\qq?uad|\\hspace\*?\s*\{[^{}]*\})*\}"
    r"|_{3,}|(?:\\_\s?){2,}"
)
# The ways to write the label of an option; the first three labels must come in order and in one
# way.
LABEL_FORMS = (
    r"(?<![A-Za-z])\({}\)",
    r"(?<![A-Za-z0-9(]){}\)",
    r"(?<![A-Za-z0-9.]){}\.(?!\w)",
    r"(?<![A-Za-z0-9]){}:(?![A-Za-z])",
)
_LABELS = tuple(tuple(re.compile(form.format(letter)) for letter in "ABC") for form in LABEL_FORMS)
_BRACES = re.compile(r"\\.|([{}])", re.DOTALL)
_DIGIT = re.compile(r"\d")


def is_unbalanced(text: str) -> bool:
    """Return whether braces do not match; escaped braces count as letters."""
    if text.count("{") == text.count("}"):
        return False
    depth = 0
    for token in _BRACES.finditer(text):
        depth += {"{": 1, "}": -1}.get(token[1], 0)
        if depth < 0:
            return True
    return depth != 0


def remove_drawings(text: str) -> str:
    """Return a problem without the code of its drawings, whose texts are not part of it."""
    kept = []
    end = 0
    while (start := text.find("[asy]", end)) >= 0 and (close := text.find("[/asy]", start)) >= 0:
        kept.append(text[end:start])
        end = close + len("[/asy]")
    return " ".join([*kept, text[end:]])


def _find_figure(problem: MathProblem, text: str) -> str | None:
    evidence = search(_FIGURE, text)
    # A drawing that is given as code can be read.
    if evidence is None and "[asy]" not in problem.problem and "tikzpicture" not in text:
        evidence = search(_SHOWN, text)
    return evidence


def _find_choice(problem: MathProblem, text: str) -> str | None:
    for labels in _LABELS:
        first = match = labels[0].search(text)
        for label in labels[1:]:
            match = label.search(text, match.end()) if match else None
        if first and match:
            return show_around(text, first)
    return None


def _find_broken(problem: MathProblem, text: str) -> str | None:
    for latex in (problem.problem, problem.answer):
        if is_unbalanced(latex):
            return f"braces do not match: {latex[-2 * AROUND :]}"
    return None


TOO_LONG = Rule(
    f"a problem of more than {MAX_CHARACTERS:,} characters",
    lambda row, text: (
        f"{len(row.problem)} characters" if len(row.problem) > MAX_CHARACTERS else None
    ),
)
MATH_RULES = {
    "giant": TOO_LONG,
    "figure": Rule(
        "refers to a figure, or to a diagram or picture of which there is no code",
        _find_figure,
        ("figure", "diagram", "picture", "image", "includegraphics", "![", "<img"),
    ),
    "proof": Rule(
        "asks for a proof: the words prove, show that",
        lambda row, text: search(_PROOF, text),
        ("prove", "show"),
    ),
    "choice": Rule("multiple choice: labels A, B and C in order", _find_choice, ("b)", "b.", "b:")),
    "blank": Rule(
        "a blank to fill in", lambda row, text: search(_BLANK, text), ("\\underline", "___", "\\_")
    ),
    "no_answer": Rule(
        "no gold answer: no line with ####, no answer column, no box",
        lambda row, text: None if row.answer else row.solution[-2 * AROUND :],
    ),
    "no_digit": Rule(
        "an answer without a digit",
        lambda row, text: None if _DIGIT.search(row.answer) else row.answer,
    ),
    "broken_latex": Rule("braces of the problem or the answer do not match", _find_broken),
    "ungradable": Rule(
        "an answer that the math verifier cannot read, or only compare as text",
        lambda row, text: check_gold(row.answer),
    ),
}
# These apply to every split, whatever is chosen: a row without an answer is useless.
MATH_ALWAYS = ("no_answer", "ungradable")


@dataclass(frozen=True)
class MathRules(RuleStage):
    """The rules that remove training problems; some always apply."""

    rules: Annotated[tuple[Literal[tuple(MATH_RULES)], ...], LISTED] = tuple(MATH_RULES)  # type: ignore[valid-type]

    name = "math_rules"
    title = "the rule filter of math"
    of = MathProblem
    table = MATH_RULES
    always = MATH_ALWAYS

    def text(self, problem: str) -> str:
        return remove_drawings(problem)
