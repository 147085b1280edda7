# SPDX-License-Identifier: Apache-2.0
"""Pages of reports as Markdown and as HTML, and the one writer of Markdown tables.

Text that comes from a model is hostile. Every method takes plain text, makes it visible, cuts and escapes it. HTML
pages need no other file; their policy forbids scripts and requests, whatever a text contains.
"""

import html
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from prime_ext.utils.files import write_text

# Line breaks and tabs may stay. C0 and C1 controls, what turns or hides text, and halves of surrogate pairs may not.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")
# Characters of a cell, of a paragraph, and of a block of text in Markdown and in HTML.
_CELL, _PARAGRAPH, _MARKDOWN_BLOCK, _HTML_BLOCK = 200, 2000, 1500, 6000
# Two hues that color-blind readers can tell apart; white is zero.
_REWARDED, _PUNISHED = (33, 102, 172), (214, 96, 20)
_FRAME = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="referrer" content="no-referrer"><title>TITLE</title><style>
:root { color-scheme: light dark; --quiet: #8a94a0; --line: #8a94a055; --red: #c4161c; }
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; margin: 0; }
main { max-width: 1120px; margin: 0 auto; padding: 22px 18px 90px; overflow-wrap: anywhere; }
h2 { border-top: 1px solid var(--line); margin: 34px 0 6px; padding-top: 14px; }
.scroll { overflow: auto; max-height: 460px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 0 4px 22px; border-bottom: 1px solid var(--line); font-weight: normal;
  vertical-align: top; }
th { color: var(--quiet); position: sticky; top: 0; background: Canvas; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
pre, .transcript { font: 13px/1.6 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre-wrap; padding: 8px 10px;
  border: 1px solid var(--line); border-radius: 6px; max-height: 420px; overflow: auto; contain: content; }
.transcript span { border-radius: 3px; padding: 0 2px; } .transcript .wrong { border-bottom: 3px solid var(--red); }
summary { cursor: pointer; padding: 3px 0; }
</style></head><body><main>
CONTENT
</main></body></html>
"""


def show_invisible(text: str) -> str:
    """Replace what is invisible, turns its neighbors round, or cannot be written as UTF-8."""

    def show(match: re.Match[str]) -> str:
        code = ord(match[0])
        return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"

    return _INVISIBLE.sub(show, text.replace("\r\n", "\n"))


def shorten(text: str, most: int) -> str:
    """Return the beginning and the end of a long text, with a note of how much is missing between them."""
    if len(text) <= most:
        return show_invisible(text)
    head = text[: 2 * most // 3]
    tail = text[len(text) - most // 3 :]
    left_out = len(text) - len(head) - len(tail)
    return f"{show_invisible(head)}\n[… {left_out:,} characters left out …]\n{show_invisible(tail)}"


def one_line(text: str, most: int = _CELL) -> str:
    """Put a text on one line of at most ``most`` characters."""
    cut = len(text) > 4 * most
    line = " ".join(show_invisible(text[: 4 * most]).split())
    return line if len(line) <= most and not cut else f"{line[: most - 1]}…"


def escape_markdown(text: str, most: int = _CELL) -> str:
    """Put a text on one line in which nothing is markup."""
    return _MARKDOWN.sub(r"\\\1", one_line(text, most)).replace("\\&", "&amp;").replace("\\<", "&lt;")


def escape_html(text: str, most: int = _CELL) -> str:
    """Put a text on one line in which nothing is markup."""
    return html.escape(one_line(text, most))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], escape: bool = True) -> str:
    """Return a Markdown table. Without ``escape`` the cells are our own Markdown and stay as they are."""
    lines = [[escape_markdown(cell) if escape else cell for cell in cells] for cells in (header, *rows)]
    lines.insert(1, ["---"] * len(header))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def color(strength: float) -> str:
    """CSS color of a reward: white at 0, full blue at 1, full orange at -1, and no stronger beyond."""
    target = _REWARDED if strength > 0 else _PUNISHED
    return "#" + "".join(f"{round(255 + (channel - 255) * min(abs(strength), 1.0)):02x}" for channel in target)


class Span(NamedTuple):
    """A piece of a transcript: a token, a step or a turn."""

    text: str
    strength: float | None = None  # color from -1 (orange) to 1 (blue)
    note: str = ""  # shown where a reader points at the text
    wrong: bool = False  # underlined


class Page:
    """A report that grows from the top. All texts are plain."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._markdown: list[str] = []
        self._html: list[str] = []
        self.heading(title, level=1)

    def _add(self, markdown: str, html_text: str) -> None:
        self._markdown += [markdown, ""]
        self._html.append(html_text)

    def heading(self, text: str, level: int = 2) -> None:
        self._add("#" * level + f" {escape_markdown(text)}", f"<h{level}>{escape_html(text)}</h{level}>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._add(escape_markdown(text, _PARAGRAPH), f"<p>{escape_html(text, _PARAGRAPH)}</p>")

    def bullets(self, texts: Sequence[str]) -> None:
        """Add a list; nothing where there is no text."""
        if texts:
            items = "".join(f"<li>{escape_html(text, _PARAGRAPH)}</li>" for text in texts)
            self._add("\n".join(f"- {escape_markdown(text, _PARAGRAPH)}" for text in texts), f"<ul>{items}</ul>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        lines = ["".join(f"<th>{escape_html(cell)}</th>" for cell in header)]
        lines += ["".join(f"<td>{escape_html(cell)}</td>" for cell in row) for row in rows]
        body = "\n".join(f"<tr>{line}</tr>" for line in lines)
        self._add(markdown_table(header, rows), f'<div class="scroll"><table>{body}</table></div>')

    def code(self, text: str) -> None:
        """Add a text as it is, in a block that it cannot end."""
        block = shorten(text, _MARKDOWN_BLOCK)
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block)), default=0))
        self._add(f"{fence}text\n{block}\n{fence}", f"<pre>{html.escape(shorten(text, _HTML_BLOCK))}</pre>")

    def transcript(self, spans: Sequence[Span]) -> None:
        """Add a text with a color behind each piece; only in HTML."""
        pieces = []
        for span in spans:
            style = ""
            if span.strength is not None:
                ink = "#fff" if abs(span.strength) > 0.7 else "#1c2530"
                style = f' style="background:{color(span.strength)};color:{ink}"'
            note = f' title="{html.escape(show_invisible(span.note))}"' if span.note else ""
            kind = ' class="wrong"' if span.wrong else ""
            pieces.append(f"<span{kind}{style}{note}>{html.escape(show_invisible(span.text))}</span>")
        self._html.append(f'<div class="transcript">{"".join(pieces)}</div>')

    @contextmanager
    def details(self, summary: str) -> Iterator[None]:
        """Fold what is added in this context."""
        begin = "<details><summary>{}</summary>"
        self._add(begin.format(escape_markdown(summary)), begin.format(escape_html(summary)))
        yield
        self._add("</details>", "</details>")

    @contextmanager
    def only_html(self) -> Iterator[None]:
        """Leave what is added in this context out of the Markdown."""
        kept = self._markdown
        self._markdown = []
        yield
        self._markdown = kept

    def markdown(self) -> str:
        return "\n".join(self._markdown).rstrip() + "\n"

    def html(self) -> str:
        # The title last: it comes first in the frame, whatever the content says.
        return _FRAME.replace("CONTENT", "\n".join(self._html), 1).replace("TITLE", escape_html(self.title), 1)

    def write(self, stem: Path) -> list[Path]:
        """Write ``stem.md`` and ``stem.html``, whole or not at all. Returns them."""
        paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("md", "html")]
        for path, text in zip(paths, (self.markdown(), self.html()), strict=True):
            write_text(path, text)
        return paths
