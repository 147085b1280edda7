# SPDX-License-Identifier: Apache-2.0
"""Nothing that a model writes is markup on a page, and long texts are cut."""

import random

from prime_ext.utils.report_page import Page, markdown_table, shorten, show_invisible

HOSTILE = "</pre></div></details><script>alert(1)</script><img src=x onerror=alert(2)>\x00\u202e\ud800``` | [x](y) \" '"


def test_hostile_text_is_only_text():
    page = Page(HOSTILE)
    page.heading(HOSTILE)
    page.text(HOSTILE)
    page.bullets([HOSTILE])
    page.table([HOSTILE, "b"], [[HOSTILE, "c"]])
    with page.details(HOSTILE):
        page.code(HOSTILE)
    lines = page.markdown().splitlines()
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
