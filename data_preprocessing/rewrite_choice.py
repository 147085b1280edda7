# SPDX-License-Identifier: Apache-2.0
"""Multiple-choice problems that a model rewrites as open questions with their gold answers.

    prime-ext data rewrite-choice --input data/math/choice.jsonl \\
        --output-dir data/open BACKEND

Reads what the pipeline puts aside as multiple choice. A problem is asked about up to --tries times,
each with a seed of its own; what cannot be rewritten is removed and listed.

These are the second and third stage of PRIME's math data (arXiv 2502.01456, appendix on data).
There the reference is read from a solution that a model rewrites. Here it is the text of the option
that the gold letter names, and what the model writes is compared with the original.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from prime_ext.generate.backend import Response, Sampling
from prime_ext.utils.arguments import COUNT

from .command import program
from .dialogues import Ask, Dialogue
from .grading import Judge
from .math_rules import LABEL_FORMS, MATH_RULES, is_unbalanced, remove_drawings
from .math_sources import MathProblem
from .model_stage import Outcome, Row, build_stage_parser, extract_problem, run_model_stage
from .stages import Removal, apply_rules

# As the published script.
SAMPLING = Sampling(temperature=0.8, max_new_tokens=2048)
TRIES = 10
RULES = {
    "options_unread": "where the options begin and end cannot be told with certainty",
    "gold_not_an_option": (
        "the gold answer is neither the letter nor the value of one of the options"
    ),
    "refers_to_options": (
        "asks which of the options something is true of, or which is closest to something"
    ),
    "needs_options": "the model says that it cannot be answered without its options",
    "malformed": "none of the model's answers has the form that it was asked for",
    "unfaithful": (
        "every rewriting loses or adds numbers, gives the answer away, or still speaks of options"
    ),
    **{
        f"rewritten_{name}": f"the open question: {rule.meaning}"
        for name, rule in MATH_RULES.items()
    },
}
SYSTEM = "You turn multiple-choice questions of mathematics into open questions."
INSTRUCTION = """\
Decide whether the question below can be answered by somebody who does not see its options, and whether there is exactly
one right answer then. If so, write it as an open question:
- leave out the options and every mention of them;
- keep all numbers, conditions and notation as they are, and add none;
- do not give the answer or any hint at it.

Answer in exactly one of these two forms, without anything before or after.

REWRITABLE: yes
REASON: one sentence
QUESTION:
the open question
END

REWRITABLE: no
REASON: one sentence
END

Example: "A square has an area of 49. Its perimeter is (A) 7 (B) 14 (C) 28" is answered by

REWRITABLE: yes
REASON: The area alone determines the perimeter.
QUESTION:
A square has an area of 49. What is its perimeter?
END

Example: "Which number is closest to the square root of 50? (A) 5 (B) 6 (C) 8" is answered by

REWRITABLE: no
REASON: The closest number depends on the numbers that are offered.
END

The question:

"""  # noqa: E501
_FORM = re.compile(
    r"\s*REWRITABLE:[ \t]*(?:no[ \t]*\nREASON:[ \t]*(?P<why>\S[^\n]*)"
    r"|yes[ \t]*\nREASON:[ \t]*\S[^\n]*\nQUESTION:[ \t]*\n(?P<question>.*\S.*?))\nEND\s*",
    re.DOTALL,
)
_REFERS = re.compile(
    r"\b(?:of|is|are)\s+(?:the\s+)?following\b|\bstatements?\b|\b(?:closest|nearest)\s+to\W*$"
    r"|\b(?:which|any|none|all|one)\s+of\s+(?:these|the\s+(?:above|below|options|choices))\b",
    re.IGNORECASE,
)
_MENTIONS = re.compile(
    r"\b(?:options?|choices?|alternatives?)\b|\bof\s+the\s+following\b", re.IGNORECASE
)
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
LETTERS = "ABCDEFGHIJ"
MIN_OPTIONS = 3
_FONT = r"\\(?:text|textbf|textrm|textit|mathrm|mathbf|bf|rm)"
_LABELS = tuple(
    {
        letter: re.compile(
            rf"{_FONT}\s*\{{\s*{form.format(letter)}(?:\s|\\ |~)*\}}|{form.format(letter)}"
        )
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
    """Return stem and options of a problem that ends with options; None if they are unclear."""
    for labels in _LABELS:
        marks = _find_marks(problem, labels)
        if len(marks) < MIN_OPTIONS:
            continue
        ends = [*(mark.start() for mark in marks[1:]), len(problem)]
        texts = [problem[mark.end() : end] for mark, end in zip(marks, ends, strict=True)]
        # Text after a blank line belongs to no option.
        if re.search(r"\n\s*\n", texts[-1].strip()) or "[asy]" in texts[-1]:
            return None
        options = dict(zip(LETTERS, map(_clean_option, texts), strict=False))
        if not all(options.values()) or any(is_unbalanced(text) for text in options.values()):
            return None
        return Choice(_clean_stem(problem[: marks[0].start()]), options)
    return None


def _find_marks(problem: str, labels: dict[str, re.Pattern[str]]) -> list[re.Match[str]]:
    """Return the labels A, B, C, ... in order, from the last A that B and C follow."""
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


def _clean_option(text: str) -> str:
    """Return an option without the separators and mathematics delimiters around it."""
    before = None
    while text != before:
        before = text
        text = _TRAILING.sub("", _LEADING.sub("", text.strip())).strip()
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1]
        if text.count("$") % 2:
            # The other dollar is that of a neighbor: one formula holds all options.
            text = text[:-1] if text.endswith("$") else text.removeprefix("$")
        elif text.startswith("$") and text.endswith("$") and text.count("$") == 2:
            text = text[1:-1]
        if text.count("}") == text.count("{") + 1:
            text = text.removesuffix("}")
        if "\\[" not in text:
            text = text.removesuffix("\\]")
    return text


def _clean_stem(text: str) -> str:
    text = _TRAILING.sub("", text.strip()).strip()
    if text.count("$") % 2:
        text = text.removesuffix("$").strip()
    return text.removesuffix("\\[").strip()


def find_option(gold: str, choice: Choice) -> str | None:
    """Return the option letter of a gold answer such as ``\\text{(B)}`` or ``B) 12``, or None."""
    match = _GOLD_LETTER.fullmatch(_GOLD_MARKUP.sub(" ", gold).strip())
    return match[1] if match and match[1] in choice.options else None


def parse_question(text: str) -> tuple[str, str] | None:
    """Return question and reason, one of them empty, or None if the answer has neither form."""
    match = _FORM.fullmatch(text.replace("\r\n", "\n"))
    if match is None:
        return None
    return (match["question"] or "").strip(), (match["why"] or "").strip()


def find_numbers(text: str) -> set[str]:
    """Return the numbers of a text, without separators of thousands."""
    return set(_NUMBER.findall(_THOUSANDS.sub("", text)))


def find_fault(choice: Choice, gold: str, question: str) -> str | None:
    """Return what is wrong with an open question, or None."""
    before = find_numbers(choice.stem)
    after = find_numbers(question)
    if before - after:
        return f"lost {', '.join(sorted(before - after))}"
    if after - before:
        return f"added {', '.join(sorted(after - before))}"
    if gold in question and gold not in choice.stem:
        return f"gives the answer {gold} away"
    mention = _MENTIONS.search(question)
    if mention and not _MENTIONS.search(choice.stem):
        return f"speaks of {mention[0]}"
    return None


def rewrite(row: Row, model: str, tries: int) -> Dialogue[Outcome]:
    """Hold the dialogue about a row: up to ``tries`` seeded answers, until one is usable."""
    problem = extract_problem(row)
    gold = row["reward_model"]["ground_truth"]
    choice = read_options(problem)
    if choice is None:
        return Removal("options_unread", problem[-200:])
    letter = find_option(gold, choice)
    if letter is None:
        verdicts = yield [
            Judge("math", f"\\boxed{{{text}}}", gold) for text in choice.options.values()
        ]
        if not any(verdict.correct for verdict in verdicts):
            return Removal(
                "gold_not_an_option", f"{gold}; options {', '.join(choice.options.values())}"
            )
    else:
        gold = choice.options[letter]
    refers = _REFERS.search(choice.stem)
    if refers is not None:
        return Removal("refers_to_options", refers[0])
    removal = Removal("malformed", "")
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": INSTRUCTION + problem},
    ]
    for attempt in range(tries):
        responses: Sequence[Response] = yield [Ask(messages, attempt=attempt)]
        read = None if responses[0].finish == "length" else parse_question(responses[0].text)
        if read is None:
            # A fault of content says more than one of form.
            if removal.rule != "unfaithful":
                removal = Removal("malformed", responses[0].text)
            continue
        question, why = read
        if not question:
            return Removal("needs_options", why)
        fault = find_fault(choice, gold, question)
        if fault is None:
            return _replace_question(row, question, gold)
        removal = Removal("unfaithful", f"{fault}: {question}")
    return removal


def _replace_question(row: Row, question: str, gold: str) -> Outcome:
    """Return the row with the open question, if it passes the rules of all other problems."""
    problem = MathProblem(row["data_source"], "train", 0, question, "", gold)
    removal = apply_rules(MATH_RULES, tuple(MATH_RULES), problem, remove_drawings(question))
    if removal is not None:
        return Removal(f"rewritten_{removal.rule}", removal.evidence or question)
    *system, user = row["prompt"]
    suffix = user["content"][len(extract_problem(row)) :]
    prompt = [*system, {**user, "content": question + suffix}]
    return [
        {**row, "prompt": prompt, "reward_model": {**row["reward_model"], "ground_truth": gold}}
    ]


@program("rewrite_choice")
def main(words: Sequence[str] | None = None) -> int:
    top = build_stage_parser("rewrite_choice", __doc__, SAMPLING)
    top.add_argument(
        "--tries", type=COUNT, default=TRIES, help=f"answers per problem at most (default: {TRIES})"
    )
    options = top.parse_args(words)
    settings = {"tries": options.tries}
    title = "Multiple choice to open questions"
    dialogue = partial(rewrite, **settings)
    return run_model_stage(options, dialogue, title=title, rules=RULES, settings=settings)


if __name__ == "__main__":
    sys.exit(main())
