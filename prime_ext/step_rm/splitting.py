# SPDX-License-Identifier: Apache-2.0
r"""Cut the text of a response into steps.

Every splitter returns character spans that cover the text without gaps; none is empty. What
precedes the first marker belongs to the first step. A text without structure is one step, the empty
text has none.

A response must not be able to make steps from nothing. Markers count at the start of a line only,
in the order 1, 2, 3, ..., outside of fenced code, and with something written after them:
``[1] [1]`` is one step, and the answer ``1. #### 1`` is not a step. Time is linear in the length of
the text; a pattern of the user has a time limit.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import regex

Span = tuple[int, int]

# Seconds that a custom pattern may take on one response.
PATTERN_SECONDS = 1.0

# A marker at the start of a line: its number is group 1. All repetitions are bounded, so a line
# costs constant time.
_MARKERS = {
    # Step 1: / **Step 1.** / ### Step 1
    "labels": re.compile(
        r"[ \t]{0,8}(?:[#>*-]{1,6}[ \t]{1,2})?(?:\*\*|__)?step[ \t]{1,3}(\d{1,4})"
        r"[ \t]{0,2}(?:\*\*|__)?[ \t]{0,2}(?:[:.)\u2013\u2014-]|$)",
        re.IGNORECASE,
    ),
    # [1] but not the link [1](address)
    "brackets": re.compile(r"[ \t]{0,8}\[(\d{1,4})\](?!\()"),
    # 1. / 1) / **1.** but not 1.5
    "numbered": re.compile(r"[ \t]{0,8}(?:\*\*|__)?(\d{1,4})[.)](?=[ \t*_]|$)"),
}
_FENCE = re.compile(r"[ \t]{0,3}(?:```|~~~)")
_ANSWER_MARK = re.compile(r"[ \t*_]{0,8}####")
_ANSWER = re.compile(
    r"[ \t*_$]{0,8}(?:####|\\boxed\b"
    r"|(?:(?:so|thus|therefore|hence),?[ ])?(?:the[ ])?(?:final[ ]|correct[ ])?answer\b)",
    re.IGNORECASE,
)
# The end of a sentence and what may stand between it and the next: closing marks, then white space
# (none in Chinese).
_SENTENCE_END = re.compile(
    r"[.!?][\"'\u201d\u2019)\]*_$]{0,3}\s+|[\u3002\uff01\uff1f][\u201d\u2019\uff09]{0,2}\s*|\n\s*"
)
_ABBREVIATION = re.compile(
    r"(?:^|[^A-Za-z])(?:e\.g|i\.e|etc|cf|vs|resp|approx|eq|eqs|fig|no|nos|thm|dr|mr|mrs|ms|prof|st)\.$",
    re.IGNORECASE,
)
_LIST_NUMBER = re.compile(r"(?:^|\n)[ \t]{0,8}\d{1,4}\.$")
# How far back from the end of a sentence abbreviations and list numbers are looked for.
_LOOK_BACK = 16


def build_spans(text: str, starts: Iterable[int]) -> list[Span]:
    """Return the spans from each start to the next; the first begins at 0."""
    inner = sorted({start for start in starts if 0 < start < len(text)})
    edges = [0, *inner, len(text)]
    return list(zip(edges, edges[1:], strict=False)) if text else []


def marker_end(text: str, start: int = 0, end: int = sys.maxsize) -> int:
    """Return where the marker at the start of a step ends; the start without a marker."""
    match = next(
        filter(None, (pattern.match(text, start, end) for pattern in _MARKERS.values())), None
    )
    return match.end() if match else start


def has_content(text: str, start: int = 0, end: int | None = None) -> bool:
    """Return whether there is a letter or a digit in addition to markers at the start."""
    end = len(text) if end is None else end
    while start < end:
        after = start + 1 if text[start].isspace() else marker_end(text, start, end)
        if after == start:
            return any(text[at].isalnum() for at in range(start, end))
        start = after
    return False


def _keep_followed(text: str, markers: Sequence[Span]) -> list[int]:
    """Return the starts of those markers (spans) that something follows before the next."""
    following = [*(start for start, _ in markers[1:]), len(text)]
    return [
        start
        for (start, body), end in zip(markers, following, strict=False)
        if has_content(text, body, end)
    ]


def _drop_empty(text: str, starts: Iterable[int]) -> list[int]:
    """Drop each start that nothing follows before the next: it belongs to the step before."""
    spans = [(start, start) for start in starts if 0 < start < len(text)]
    kept = _keep_followed(text, spans)
    # Nothing before the first start: it begins with the text.
    return kept[1:] if kept and not has_content(text, 0, kept[0]) else kept


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield start and content of the lines that are not in fenced code."""
    at = 0
    fenced = False
    for line in text.split("\n"):
        is_fence = _FENCE.match(line) is not None
        if not fenced and not is_fence:
            yield at, line
        fenced ^= is_fence
        at += len(line) + 1


def split_at_markers(text: str, style: str) -> list[Span]:
    """Split at markers of a style that count 1, 2, 3, ... (or from 0).

    Styles are ``labels`` (Step 1:), ``brackets`` ([1]) and ``numbered`` (1. or 1)). Repeated and
    skipped numbers are text, and so are markers that only the answer follows.
    """
    pattern = _MARKERS[style]
    markers: list[tuple[int, int]] = []
    expected: int | None = None
    for at, line in _lines(text):
        match = pattern.match(line)
        if match is None or _ANSWER_MARK.match(line, match.end()):
            continue
        number = int(match[1])
        if number == expected or (expected is None and number in (0, 1)):
            markers.append((at, at + match.end()))
            expected = number + 1
    # What precedes the first marker belongs to its step.
    return build_spans(text, _keep_followed(text, markers)[1:])


def split_paragraphs(text: str) -> list[Span]:
    """Split at blank lines outside of fenced code; an answer belongs to the step before."""
    starts = []
    blank = False
    for at, line in _lines(text):
        if blank and line.strip() and not _ANSWER.match(line):
            starts.append(at)
        blank = not line.strip()
    return build_spans(text, _drop_empty(text, starts))


def split_sentences(text: str) -> list[Span]:
    """Split after sentences and at line breaks. Abbreviations and list numbers end no sentence."""
    starts = []
    for match in _SENTENCE_END.finditer(text):
        before = text[max(0, match.start() + 1 - _LOOK_BACK) : match.start() + 1]
        if text[match.start()] == "." and (
            _ABBREVIATION.search(before) or _LIST_NUMBER.search(before)
        ):
            continue
        following = text[match.end() : match.end() + 1]
        begins = (
            following.isupper()
            or following.isdigit()
            or following in tuple("$\\([\"'\u201c*")
            or following > "\u2e80"
        )
        if following and begins and not _ANSWER.match(text, match.end()):
            starts.append(match.end())
    return build_spans(text, _drop_empty(text, starts))


def split_after(text: str, delimiters: Sequence[str]) -> list[Span]:
    """Split after delimiters, and after more delimiters and white space that follow them."""
    either = "|".join(
        re.escape(delimiter) for delimiter in sorted(delimiters, key=len, reverse=True)
    )
    return build_spans(
        text, _drop_empty(text, [match.end() for match in re.finditer(either, text)])
    )


def split_at_pattern(text: str, pattern: str) -> list[Span]:
    """Split at matches of a ``regex``. Raises ``TimeoutError`` after :data:`PATTERN_SECONDS`."""
    matches = regex.compile(pattern, regex.MULTILINE).finditer(text, timeout=PATTERN_SECONDS)
    return build_spans(text, _drop_empty(text, [match.start() for match in matches]))


def split_auto(text: str) -> list[Span]:
    """Split by the first of labels, brackets, numbers, paragraphs, sentences with two steps."""
    spans: list[Span] = build_spans(text, [])
    for name in (*_MARKERS, "paragraphs", "sentences"):
        spans = SPLITTERS[name](text)
        if len(spans) > 1:
            break
    return spans


SPLITTERS: dict[str, Callable[[str], list[Span]]] = {
    "auto": split_auto,
    **{style: partial(split_at_markers, style=style) for style in _MARKERS},
    "paragraphs": split_paragraphs,
    "sentences": split_sentences,
}


def split_steps(text: str, splitter: str = "auto", argument: Any = None) -> list[Span]:
    """Split by a name of :data:`SPLITTERS`, or by ``pattern`` or ``delimiters``.

    ``argument`` is the pattern or the delimiters. Raises ``TimeoutError``: the pattern took too
    long.
    """
    if splitter == "pattern":
        return split_at_pattern(text, argument)
    if splitter == "delimiters":
        return split_after(text, argument)
    return SPLITTERS[splitter](text)
