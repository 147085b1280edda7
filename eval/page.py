# SPDX-License-Identifier: Apache-2.0
"""Pages of reports, written as Markdown and as HTML at once, so that the two cannot differ; numbers as they show them.

Texts of models are hostile: here they are made visible, cut and escaped. HTML pages need nothing else and have no
script; their policy forbids scripts and requests, whatever a text contains.
"""

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prime_ext.utils.files import write_text

NONE = "–"
# Line breaks and tabs may stay. C0 and C1 controls, what turns or hides text, and halves of surrogate pairs may not.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")
_FRAME = Path(__file__).with_name("page.html")
# Characters of a cell, and of a text that is shown as it is, in Markdown and in HTML.
_CELL, _CODE = 200, (1500, 6000)


def percent(value: float | None) -> str:
    """A fraction in percent, without the sign."""
    return NONE if value is None else f"{100 * value:.1f}"


def score(estimate: Mapping[str, Any] | None) -> str:
    """An estimate with its standard error, in percent."""
    if estimate is None:
        return NONE
    error = estimate["standard_error"]
    return percent(estimate["value"]) + (f" ± {percent(error)}" if error is not None else "")


def interval(estimate: Mapping[str, Any] | None) -> str:
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


def one_line(text: str, most: int = _CELL) -> str:
    """A text on one line."""
    cut = len(text) > 4 * most
    line = " ".join(visible(text[: 4 * most]).split())
    return line if len(line) <= most and not cut else f"{line[: most - 1]}…"


def show_prompt(prompt: str | Sequence[Mapping[str, str]]) -> str:
    """What a model was shown: a text as it is, a chat with the roles."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"[{turn.get('role', '?')}]\n{turn.get('content', '')}" for turn in prompt)


def flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Settings as pairs of dotted names and texts."""
    pairs: list[tuple[str, str]] = []
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            pairs += flatten(item, f"{prefix}{name}.")
        else:
            shown = item if isinstance(item, str) else NONE if item is None else json.dumps(item, ensure_ascii=False)
            pairs.append((f"{prefix}{name}", shown))
    return pairs


def markdown_text(text: str, most: int = _CELL) -> str:
    """A text on one line in which nothing is markup."""
    return _MARKDOWN.sub(r"\\\1", one_line(text, most)).replace("\\&", "&amp;").replace("\\<", "&lt;")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; cells are plain texts."""
    lines = [[markdown_text(cell) for cell in cells] for cells in (head, *rows)]
    lines.insert(1, ["---"] * len(head))
    return [*("| " + " | ".join(cells) + " |" for cells in lines), ""]


def _escaped(text: str, most: int = _CELL) -> str:
    return html.escape(one_line(text, most))


class Page:
    """A page that grows from above; whatever is added is a plain text."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._markdown = [f"# {markdown_text(title)}", ""]
        self._html = [f"<h1>{_escaped(title)}</h1>"]

    def heading(self, text: str, anchor: str = "", level: int = 2) -> None:
        """A heading; ``anchor`` is where links lead."""
        self._markdown += ["#" * level + f" {markdown_text(text)}", ""]
        self._html.append(f"<h{level}{f' id={chr(34)}{anchor}{chr(34)}' if anchor else ''}>{_escaped(text)}</h{level}>")

    def text(self, text: str) -> None:
        """A paragraph."""
        self._markdown += [markdown_text(text, 2000), ""]
        self._html.append(f"<p>{_escaped(text, 2000)}</p>")

    def bullets(self, texts: Sequence[str]) -> None:
        """A list."""
        if texts:
            self._markdown += [*(f"- {markdown_text(text, 2000)}" for text in texts), ""]
            self._html.append("<ul>" + "".join(f"<li>{_escaped(text, 2000)}</li>" for text in texts) + "</ul>")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], ours: Sequence[int] = ()) -> None:
        """A table; columns ``ours`` stand out."""
        self._markdown += markdown_table(head, rows)
        strong = [' class="ours"' if column in ours else "" for column in range(len(head))]
        lines = [f"<td{kind}>{_escaped(cell)}</td>" for row in rows for kind, cell in zip(strong, row, strict=True)]
        body = [f"<tr>{''.join(lines[at : at + len(head)])}</tr>" for at in range(0, len(lines), len(head))]
        top = "".join(f"<th>{_escaped(cell)}</th>" for cell in head)
        self._html.append(f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>')
        self._html += [*body, "</tbody></table></div>"]

    def code(self, text: str) -> None:
        """A text as it is, in a block that it cannot end."""
        in_markdown, in_html = (shorten(text, most) for most in _CODE)
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", in_markdown)), default=0))
        self._markdown += [f"{fence}text", in_markdown, fence, ""]
        self._html.append(f"<pre>{html.escape(in_html)}</pre>")

    def figure(self, svg: str) -> None:
        """A picture that we drew, only in HTML."""
        self._html.append(f"<figure>{svg}</figure>")

    def links(self, links: Sequence[tuple[str, str]]) -> None:
        """Texts with the anchors to which they lead, only in HTML."""
        items = "".join(f'<a href="#{anchor}">{_escaped(text)}</a>' for text, anchor in links)
        self._html.append(f"<nav>{items}</nav>")

    @contextmanager
    def details(self, summary: str) -> Iterator[None]:
        """What is added meanwhile is folded."""
        self._markdown += [f"<details><summary>{markdown_text(summary)}</summary>", ""]
        self._html.append(f"<details><summary>{_escaped(summary)}</summary>")
        yield
        self._markdown += ["</details>", ""]
        self._html.append("</details>")

    @contextmanager
    def box(self, kind: str = "") -> Iterator[None]:
        """What is added meanwhile stays together; boxes in a box of kind ``columns`` stand side by side."""
        self._html.append(f'<div class="{kind}">')
        yield
        self._html.append("</div>")

    @contextmanager
    def only_html(self) -> Iterator[None]:
        """What is added meanwhile is too much for Markdown."""
        kept, self._markdown = self._markdown, []
        yield
        self._markdown = kept

    def markdown(self) -> str:
        """The page as Markdown."""
        return "\n".join(self._markdown).rstrip() + "\n"

    def write(self, stem: Path) -> list[Path]:
        """Write ``stem.md`` and ``stem.html``. Returns them."""
        frame = _FRAME.read_text(encoding="utf-8")
        # The title last: it comes first in the frame, whatever the content says.
        page = frame.replace("CONTENT", "\n".join(self._html), 1).replace("TITLE", _escaped(self.title), 1)
        texts = {stem.with_name(f"{stem.name}.md"): self.markdown(), stem.with_name(f"{stem.name}.html"): page}
        for path, text in texts.items():
            write_text(path, text)
        return list(texts)
