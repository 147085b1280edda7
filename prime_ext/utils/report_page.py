# SPDX-License-Identifier: Apache-2.0
"""Pages of reports as Markdown, and the one writer of Markdown tables.

Text that comes from a model is hostile. Every method takes plain text, makes it visible, cuts and
escapes it.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# Line breaks and tabs may stay. C0 and C1 controls, what turns or hides text, and halves of
# surrogate pairs may not.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")
# Characters of a cell, of a paragraph, and of a block of text.
_CELL = 200
_PARAGRAPH = 2000
_BLOCK = 1500


def show_invisible(text: str) -> str:
    """Replace what is invisible, turns its neighbors round, or cannot be written as UTF-8."""

    def show(match: re.Match[str]) -> str:
        code = ord(match[0])
        return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"

    return _INVISIBLE.sub(show, text.replace("\r\n", "\n"))


def shorten(text: str, most: int) -> str:
    """Return the beginning and the end of a long text, with a note of how much is left out."""
    if len(text) <= most:
        return show_invisible(text)
    head = text[: 2 * most // 3]
    tail = text[len(text) - most // 3 :]
    left_out = len(text) - len(head) - len(tail)
    return f"{show_invisible(head)}\n[… {left_out:,} characters left out …]\n{show_invisible(tail)}"


def join_lines(text: str, most: int = 300) -> str:
    """Put a text on one line of at most ``most`` characters."""
    cut = len(text) > 4 * most
    line = " ".join(show_invisible(text[: 4 * most]).split())
    return line if len(line) <= most and not cut else f"{line[: most - 1]}…"


def escape_markdown(text: str, most: int = _CELL) -> str:
    """Put a text on one line in which nothing is markup."""
    return (
        _MARKDOWN.sub(r"\\\1", join_lines(text, most))
        .replace("\\&", "&amp;")
        .replace("\\<", "&lt;")
    )


def format_markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], escape: bool = True
) -> str:
    """Return a Markdown table. Without ``escape`` its cells are our own Markdown, kept as it is."""
    lines = [
        [escape_markdown(cell) if escape else cell for cell in cells] for cells in (header, *rows)
    ]
    lines.insert(1, ["---"] * len(header))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


class Page:
    """A report that grows from the top. All texts are plain."""

    def __init__(self, title: str) -> None:
        self._parts: list[str] = []
        self.heading(title, level=1)

    def heading(self, text: str, level: int = 2) -> None:
        self._parts.append("#" * level + f" {escape_markdown(text)}")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(escape_markdown(text, _PARAGRAPH))

    def bullets(self, texts: Sequence[str]) -> None:
        """Add a list; nothing without a text."""
        if texts:
            self._parts.append(
                "\n".join(f"- {escape_markdown(text, _PARAGRAPH)}" for text in texts)
            )

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._parts.append(format_markdown_table(header, rows))

    def code(self, text: str, language: str = "text") -> None:
        """Add a text as it is, in a block that it cannot end."""
        block = shorten(text, _BLOCK)
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block)), default=0))
        self._parts.append(f"{fence}{language}\n{block}\n{fence}")

    @contextmanager
    def details(self, summary: str) -> Iterator[None]:
        """Fold the content that is added in this context."""
        self._parts.append(f"<details><summary>{escape_markdown(summary)}</summary>")
        yield
        self._parts.append("</details>")

    def markdown(self) -> str:
        return "\n\n".join(self._parts) + "\n"
