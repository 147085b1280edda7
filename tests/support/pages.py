# SPDX-License-Identifier: Apache-2.0
"""The pages of the repository and what stands in them."""

import functools
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("recipes", "tests", "docs", "eval", "data_preprocessing", "prime_ext")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
)


@functools.cache
def get_tokens(page: Path) -> list[Token]:
    """Return the parts of a page, those inside paragraphs and tables too."""
    blocks = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    return [token for block in blocks for token in (block, *(block.children or ()))]


def shell_blocks(page: Path) -> list[str]:
    """Return what a reader is asked to type."""
    return [
        token.content
        for token in get_tokens(page)
        if token.type == "fence" and token.info == "bash"
    ]
