# SPDX-License-Identifier: Apache-2.0
r"""The parts of a multiple-choice problem: what is asked, the options, and which of them the gold answer names."""

import re
from dataclasses import dataclass

from data_preprocessing.math_rules import LABEL_FORMS, unbalanced

LETTERS = "ABCDEFGHIJ"
MIN_OPTIONS = 3
_FONT = r"\\(?:text|textbf|textrm|textit|mathrm|mathbf|bf|rm)"
_LABELS = tuple(
    {
        letter: re.compile(rf"{_FONT}\s*\{{\s*{form.format(letter)}(?:\s|\\ |~)*\}}|{form.format(letter)}")
        for letter in LETTERS
    }
    for form in LABEL_FORMS
)
_SPACE = r"\s|\\[ ,;:!\\]|\\(?:q?quad|indent)(?![a-zA-Z])|~"
_LEADING = re.compile(rf"^(?:{_SPACE}|[,;])+")
_TRAILING = re.compile(rf"(?:{_SPACE}|[,;]|{_FONT}\s*\{{)+$")
_GOLD_MARKUP = re.compile(rf"{_FONT}(?![a-zA-Z])|[{{}}$]|\\[ ,;:!]|~")
_GOLD_LETTER = re.compile(r"\(?\s*([A-J])\s*(?:\)?\s*[.:]?|(?:\)|[.:])\s*(\S.*))", re.DOTALL)


@dataclass(frozen=True)
class Choice:
    """A multiple-choice problem."""

    stem: str
    options: dict[str, str]


def read_options(problem: str) -> Choice | None:
    """The parts of a problem that ends with its options; None if they cannot be told apart with certainty."""
    for labels in _LABELS:
        marks = _marks(problem, labels)
        if len(marks) < MIN_OPTIONS:
            continue
        ends = [*(mark.start() for mark in marks[1:]), len(problem)]
        texts = [problem[mark.end() : end] for mark, end in zip(marks, ends, strict=True)]
        # Text after a blank line belongs to no option.
        if re.search(r"\n\s*\n", texts[-1].strip()) or "[asy]" in texts[-1]:
            return None
        options = dict(zip(LETTERS, map(_cleaned, texts), strict=False))
        if not all(options.values()) or any(unbalanced(text) for text in options.values()):
            return None
        return Choice(_stem(problem[: marks[0].start()]), options)
    return None


def _marks(problem: str, labels: dict[str, re.Pattern[str]]) -> list[re.Match[str]]:
    """The labels A, B, C, ... in order, from the last A that has a B and a C behind it."""
    for first in reversed(list(labels["A"].finditer(problem))):
        marks = [first]
        for letter in LETTERS[1:]:
            mark = labels[letter].search(problem, marks[-1].end())
            if mark is None:
                break
            marks.append(mark)
        if len(marks) >= MIN_OPTIONS:
            return marks
    return []


def _cleaned(text: str) -> str:
    """An option without what separates it from its neighbours and the mathematics delimiters around all of it."""
    before = None
    while text != before:
        before = text
        text = _TRAILING.sub("", _LEADING.sub("", text.strip())).strip()
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1]
        if text.count("$") % 2:
            # The other dollar is that of a neighbour: one formula holds all options.
            text = text[:-1] if text.endswith("$") else text.removeprefix("$")
        elif text.startswith("$") and text.endswith("$") and text.count("$") == 2:
            text = text[1:-1]
        if text.count("}") == text.count("{") + 1:
            text = text.removesuffix("}")
        if "\\[" not in text:
            text = text.removesuffix("\\]")
    return text


def _stem(text: str) -> str:
    text = _TRAILING.sub("", text.strip()).strip()
    if text.count("$") % 2:
        text = text.removesuffix("$").strip()
    return text.removesuffix("\\[").strip()


def option_named(gold: str, choice: Choice) -> str | None:
    """The letter that a gold answer consists of or begins with, such as ``\\text{(B)}`` or ``B) 12``; None if it is no
    letter of an option.
    """
    found = _GOLD_LETTER.fullmatch(_GOLD_MARKUP.sub(" ", gold).strip())
    return found[1] if found and found[1] in choice.options else None
