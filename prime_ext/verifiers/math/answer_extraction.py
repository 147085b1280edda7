# SPDX-License-Identifier: Apache-2.0
"""Search for the final answer in a response, a hostile text, in time linear in its length.

The styles, and which of several boxes count: docs/reference/verifier_rules.md.
"""

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from prime_ext.verifiers.math.notation import normalize

MAX_BOXES = 10

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s{0,9}\{")
_TOKEN = re.compile(r"(\\(?:boxed|fbox|framebox)\s{0,9}\{)|\\.|([{}])", re.DOTALL)
_BARE_BOX = re.compile(
    r"\\boxed[ \t]{0,9}(-?\d+(?:[.,]\d+)*(?:/\d+)?|\\[dt]?frac\{[^{}]{1,99}\}\{[^{}]{1,99}\})"
)
_SENTENCE_END = re.compile(r"[.!?][\s*$)\]]*\s(?=[\s\S])|\n")
_FILLER = re.compile(
    r"\s+|\\[()\[\],;:! ]"
    r"|\\(?:quad|qquad|text|mathrm|textbf|left|right|big|Big)(?![a-zA-Z])|[$.,;:&{}()\[\]*|=>#-]"
    r"|\b(?:and|or|option|answer|case|part|solution|root|i{1,3}|iv|v)\b|\b[a-zA-Z](?:_\{?\w\}?)?(?=\W|$)|\b\d(?=[.):\s])",
    re.IGNORECASE,
)
_CONCLUSION = re.compile(
    r"\b(?:so|thus|hence|therefore|final|finally|gives|giving|implies|means)\b|\\(?:implies|Rightarrow|therefore)",
    re.IGNORECASE,
)
_HASHES = re.compile(r"#{4,}([^\n]{1,400})(?:(?=\n\s{0,9}([^\n]{1,400})))?")
_LABEL = re.compile(r"\A[\s*]*(?:the\s)?(?:final\s)?answer\s*(?:is\b|[:=])?", re.IGNORECASE)
_WORD = re.compile(r"[a-zA-Z]{2,}")
_ANSWER_IS = re.compile(
    r"\banswer(?:[ \t]{1,9}\w{1,20}){0,6}?[ \t*_]{0,9}(?:\bis\b|\bare\b|:|=)"
    r"|(?:\A|\n)[\s*#]{0,9}(?:final )?answer[*:]{0,4}[ \t]{0,9}\n",
    re.IGNORECASE,
)
_STATEMENT_END = re.compile(
    r"[.!?](?:[\s*]|$)|,? (?:which|because|since|so|where|as)\b| \((?=[a-zA-Z]{2,} )"
)
_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?%?|-?\.\d+")


@dataclass(frozen=True)
class Extraction:
    """The answer found, or None, and the rule that found or refused it."""

    answer: str | None
    rule: str


_Finder = Callable[[str], Extraction | None]
# What closes the thoughts of a response; the answer follows it.
_THOUGHTS_END = re.compile(
    r"</(?:\w{1,9}:)?(?:think|thinking|thought|thoughts|reasoning|analysis|scratchpad)>"
    r"|◁/think▷|\[/THINK\]|<\|(?:end_of_thought|end_of_thinking|/think|begin_of_solution)\|>"
    r"|<\|channel\|>final<\|message\|>",
    re.IGNORECASE,
)


def extract(response: str, style: str = "boxed") -> Extraction:
    """Return the final answer by the rules of ``style``. Raises ValueError: unknown style."""
    if style not in STYLES:
        raise ValueError(f"extraction must be one of {', '.join(sorted(STYLES))}, got {style!r}")
    closed = deque(_THOUGHTS_END.finditer(response), maxlen=1)
    rest = response[closed[0].end() :] if closed else ""
    response = rest if rest.strip() else response
    for find in STYLES[style]:
        extraction = find(response)
        if extraction is not None:
            return extraction
    return Extraction(None, f"no answer in style {style!r}")


def extract_answer(response: str, style: str = "boxed") -> str | None:
    """Return only the answer, None if there is none. See :func:`extract`."""
    return extract(response, style).answer


def _boxes(text: str, start: int) -> list[tuple[int, int, int]]:
    """Return start, content's start and end of the innermost complete boxes from ``start`` on."""
    boxes: list[tuple[int, int, int]] = []
    # One entry per open brace: where the box starts, where its content does, and how many boxes
    # were complete by then; None for a brace that opens no box.
    stack: list[tuple[int, int, int] | None] = []
    for token in _TOKEN.finditer(text, start):
        if token.group(1):
            stack.append((token.start(), token.end(), len(boxes)))
        elif token.group(2) == "{":
            stack.append(None)
        elif token.group(2) == "}" and stack:
            opened = stack.pop()
            if opened is not None and len(boxes) == opened[2]:
                boxes.append((opened[0], opened[1], token.start()))
    return boxes


def _is_same_statement(gap: str) -> bool:
    return (
        len(gap) <= 400
        and not _CONCLUSION.search(gap)
        and not (_SENTENCE_END.search(gap) and _FILLER.sub("", gap))
    )


def _find_boxed(text: str) -> Extraction | None:
    opening = _BOX.search(text)
    boxes = _boxes(text, opening.start()) if opening is not None else []
    rest = text[boxes[-1][2] :] if boxes else text
    bare = _build_finder(_BARE_BOX, "last box, without braces")(rest)
    if bare is not None or not boxes:
        return bare
    boxes = [box for box in boxes if text[box[1] : box[2]].strip("\\ \t\n")] or boxes[-1:]
    first = len(boxes) - 1
    while first > 0 and _is_same_statement(text[boxes[first - 1][2] + 1 : boxes[first][0]]):
        first -= 1
    contents = [text[content:close].strip() for _, content, close in boxes[first:]]
    answers: dict[str, str] = {}
    for answer in filter(None, contents):
        is_plain = len(contents) == 1 or len(answer) >= 1000
        answers.setdefault(answer if is_plain else normalize(answer), answer)
    if not answers:
        return Extraction(None, "the box is empty")
    if len(answers) > MAX_BOXES:
        return Extraction(None, f"more than {MAX_BOXES} different boxes in one statement")
    several = f"{len(answers)} boxes in one statement, taken as a list"
    return Extraction(", ".join(answers.values()), several if len(answers) > 1 else "last box")


def _build_finder(pattern: re.Pattern[str], rule: str) -> _Finder:
    def find(text: str) -> Extraction | None:
        matches = deque(pattern.finditer(text), maxlen=1)
        answer = matches[0].group(matches[0].re.groups).strip() if matches else ""
        return Extraction(answer, rule) if answer else None

    return find


def _find_answer_is(text: str) -> Extraction | None:
    matches = deque(_ANSWER_IS.finditer(text), maxlen=1)
    if not matches:
        return None
    line = text[matches[0].end() : matches[0].end() + 400].lstrip(" \t\n:*_").partition("\n")[0]
    answer = _STATEMENT_END.split(line, maxsplit=1)[0].strip(" \t*:_")
    return Extraction(answer, "last 'the answer is'") if answer else None


def _find_hashes(text: str) -> Extraction | None:
    """Headings do not count, except "Final answer" with the answer on the next line."""
    answer = ""
    for match in _HASHES.finditer(text):
        same, following = match.group(1), match.group(2) or ""
        line = _LABEL.sub("", same).strip(" \t\r*:#") or following.strip(" \t\r*")
        answer = answer if _WORD.match(line) else line or answer
    return Extraction(answer, "last #### line") if answer else None


STYLES: dict[str, tuple[_Finder, ...]] = {
    "boxed": (_find_boxed,),
    "gsm8k": (_find_hashes, _find_boxed, _find_answer_is),
    "answer_is": (_find_answer_is,),
    "lenient": (_find_hashes, _find_boxed, _find_answer_is, _build_finder(_NUMBER, "last number")),
}
