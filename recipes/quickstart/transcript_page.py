# SPDX-License-Identifier: Apache-2.0
"""The page ``transcripts.html``, with a background color for each piece of a response.

Text that comes from a model is hostile. Every method takes plain text, makes it visible and escapes
it. The page needs no other file; its policy forbids scripts and requests, whatever a text contains.
"""

import html
from collections.abc import Sequence
from typing import NamedTuple

from prime_ext.utils.report_page import show_invisible

# Two hues that color-blind readers can tell apart; white is zero.
_REWARDED = (33, 102, 172)
_PUNISHED = (214, 96, 20)
_FRAME = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="referrer" content="no-referrer"><title>Process rewards</title><style>
:root { color-scheme: light dark; --quiet: #8a94a0; --line: #8a94a055; --red: #c4161c; }
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; margin: 0; }
main { max-width: 1120px; margin: 0 auto; padding: 22px 18px 90px; overflow-wrap: anywhere; }
h2 { border-top: 1px solid var(--line); margin: 34px 0 6px; padding-top: 14px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 0 4px 22px; border-bottom: 1px solid var(--line); font-weight: normal; }
th { color: var(--quiet); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.transcript { font: 13px/1.6 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre-wrap; padding: 8px 10px;
  border: 1px solid var(--line); border-radius: 6px; max-height: 420px; overflow: auto; contain: content; }
.transcript span { border-radius: 3px; padding: 0 2px; } .transcript .wrong { border-bottom: 3px solid var(--red); }
</style></head><body><main>
<h1>Process rewards</h1>
CONTENT
</main></body></html>
"""  # noqa: E501


def color(strength: float) -> str:
    """Return the CSS color of a reward: white at 0, full blue from 1, full orange from -1 on."""
    target = _REWARDED if strength > 0 else _PUNISHED
    return "#" + "".join(
        f"{round(255 + (channel - 255) * min(abs(strength), 1.0)):02x}" for channel in target
    )


def escape(text: str) -> str:
    """Make a text visible, and nothing in it markup."""
    return html.escape(show_invisible(text))


class Span(NamedTuple):
    """A piece of a transcript: a token, a step or a turn."""

    text: str
    strength: float | None = None  # color from -1 (orange) to 1 (blue)
    note: str = ""  # shown where a reader points at the text
    wrong: bool = False  # underlined


class TranscriptPage:
    """A page that grows from the top."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        lines = ["".join(f"<th>{escape(cell)}</th>" for cell in header)]
        lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
        body = "\n".join(f"<tr>{line}</tr>" for line in lines)
        self._parts.append(f"<table>{body}</table>")

    def transcript(self, spans: Sequence[Span]) -> None:
        """Add a text with a background color for each piece."""
        pieces = []
        for span in spans:
            style = ""
            if span.strength is not None:
                ink = "#fff" if abs(span.strength) > 0.7 else "#1c2530"
                style = f' style="background:{color(span.strength)};color:{ink}"'
            note = f' title="{escape(span.note)}"' if span.note else ""
            kind = ' class="wrong"' if span.wrong else ""
            pieces.append(f"<span{kind}{style}{note}>{escape(span.text)}</span>")
        self._parts.append(f'<div class="transcript">{"".join(pieces)}</div>')

    def html(self) -> str:
        return _FRAME.replace("CONTENT", "\n".join(self._parts), 1)
