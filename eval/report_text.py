# SPDX-License-Identifier: Apache-2.0
"""Numbers and texts as reports show them. Texts of models are hostile: they are made visible and cut here."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Estimate = Mapping[str, Any]
NONE = "–"
# Line breaks and tabs may stay. C0 and C1 controls, what turns or hides text, and halves of surrogate pairs may not.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction in percent, without the sign."""
    return NONE if value is None else f"{100 * value:.{digits}f}"


def signed(value: float | None) -> str:
    """A difference of fractions in points, with its sign."""
    return NONE if value is None else f"{100 * value:+.1f}"


def score(estimate: Estimate | None) -> str:
    """An estimate with its standard error, in percent."""
    if estimate is None:
        return NONE
    error = estimate["standard_error"]
    return percent(estimate["value"]) + (f" ± {percent(error)}" if error is not None else "")


def interval(estimate: Estimate | None) -> str:
    """The 95 % interval of an estimate, in percent."""
    if estimate is None or estimate["low"] is None:
        return NONE
    return f"{percent(estimate['low'])} to {percent(estimate['high'])}"


def number(value: float) -> str:
    """A count, or a measured number with one digit."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def visible(text: str) -> str:
    """Text in which nothing is invisible, turns its neighbours round, or cannot be written as UTF-8."""

    def show(match: re.Match[str]) -> str:
        code = ord(match[0])
        return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"

    return _INVISIBLE.sub(show, text.replace("\r\n", "\n"))


def shorten(text: str, most: int) -> str:
    """The beginning and the end of a long text, with a note of what was left out between them."""
    if len(text) <= most:
        return visible(text)
    head, tail = text[: 2 * most // 3], text[len(text) - most // 3 :]
    left_out = len(text) - len(head) - len(tail)
    return f"{visible(head)}\n[… {left_out:,} characters left out …]\n{visible(tail)}"


def one_line(text: str, most: int = 80) -> str:
    """A text on one line."""
    cut = len(text) > 4 * most
    line = " ".join(visible(text[: 4 * most]).split())
    return line if len(line) <= most and not cut else f"{line[: most - 1]}…"


def show_prompt(prompt: str | Sequence[Any]) -> str:
    """What a model was shown: a text as it is, a chat with the roles."""
    if isinstance(prompt, str):
        return prompt
    parts = [message if isinstance(message, dict) else {"content": message} for message in prompt]
    return "\n\n".join(f"[{part.get('role', '?')}]\n{part.get('content', '')}" for part in parts)


def plain(value: Any) -> str:
    """A setting as text."""
    if isinstance(value, str):
        return value
    return NONE if value is None else json.dumps(value, ensure_ascii=False)


def flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Settings as pairs of dotted names and texts."""
    pairs: list[tuple[str, str]] = []
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            pairs += flatten(item, f"{prefix}{name}.")
        else:
            pairs.append((f"{prefix}{name}", plain(item)))
    return pairs


def markdown_text(text: str, most: int = 200) -> str:
    """A text on one line in which nothing is markup."""
    return _MARKDOWN.sub(r"\\\1", one_line(text, most)).replace("\\&", "&amp;").replace("\\<", "&lt;")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return [*("| " + " | ".join(cells) + " |" for cells in lines), ""]


def markdown_fence(text: str) -> list[str]:
    """A block of code that the text cannot end."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", text, fence, ""]


def anchor(text: str) -> str:
    """A name for links within a page."""
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
