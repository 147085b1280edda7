# SPDX-License-Identifier: Apache-2.0
"""Nothing that a model writes is markup on a page, and long texts are cut."""

import html.parser
import random

from prime_ext.utils.report_page import Page, Span, color, markdown_table, shorten, show_invisible

HOSTILE = "</pre></div></details><script>alert(1)</script><img src=x onerror=alert(2)>\x00\u202e\ud800``` | [x](y) \" '"


class Elements(html.parser.HTMLParser):
    """Elements and texts that a browser finds on a page."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.texts = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.texts.append(data)


def test_hostile_text_is_only_text(tmp_path):
    page = Page(HOSTILE)
    page.heading(HOSTILE)
    page.text(HOSTILE)
    page.bullets([HOSTILE])
    page.table([HOSTILE, "b"], [[HOSTILE, "CONTENT TITLE"]])
    with page.details(HOSTILE):
        page.code(HOSTILE)
        page.transcript([Span(HOSTILE, -0.9, HOSTILE, wrong=True), Span(HOSTILE)])
    markdown, path = page.write(tmp_path / "page")
    found = Elements(path.read_text(encoding="utf-8"))
    tags = [tag for tag, _ in found.elements]
    assert not {"script", "img"} & set(tags) and not any("onerror" in own for _, own in found.elements)
    wrong = [own for tag, own in found.elements if tag == "span"]
    assert wrong[0]["style"].startswith(f"background:{color(-0.9)};") and wrong[0]["title"] == show_invisible(HOSTILE)
    # Each of the eleven places holds the text as one piece.
    lines = markdown.read_text(encoding="utf-8").splitlines()
    # The block has a longer fence than any in the text, and a cell does not end its row.
    assert "````text" in lines and "````" in lines
    outside = [line for line in lines if line != show_invisible(HOSTILE) and "details>" not in line]
    assert not any("<script" in line or "<img" in line for line in outside)


def test_a_table_has_a_row_a_line_and_escapes_unless_it_is_our_own():
    assert markdown_table(["a", "b"], [["x|y", "1\n2"]]) == "| a | b |\n| --- | --- |\n| x\\|y | 1 2 |"
    assert markdown_table(["`a_b`"], [["*x*"]], escape=False) == "| `a_b` |\n| --- |\n| *x* |"


def test_long_text_is_cut_and_invisible_text_shown():
    text = "".join(random.Random(0).choices("abc ", k=10_000))
    cut = shorten(text, 900)
    assert cut.startswith(text[:600]) and cut.endswith(text[-300:]) and "9,100 characters left out" in cut
    assert shorten(text, 10_000) == text
    assert show_invisible("a\tb\nc") == "a\tb\nc"
    assert show_invisible("\x7f\u200b\udfff") == "⟨U+007F⟩⟨U+200B⟩⟨U+DFFF⟩"


def test_colors_are_white_at_zero_and_never_beyond_the_strongest():
    assert color(0.0) == "#ffffff" and color(1.0) == color(7.0) == "#2166ac" and color(-1.0) == "#d66014"
