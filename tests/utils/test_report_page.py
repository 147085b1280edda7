# SPDX-License-Identifier: Apache-2.0
"""Nothing that a model writes is markup on a page."""

from prime_ext.utils.report_page import Page, show_invisible

HOSTILE = (
    "</pre></div></details><script>alert(1)</script><img src=x onerror=alert(2)>\x00\u202e\ud800```"
    " | [x](y) \" '"
)


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
