# SPDX-License-Identifier: Apache-2.0
"""Every page can be reached from docs/index.md, and what pages link to, run and name is there."""

import functools
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("recipes", "tests", "docs", "eval", "data_preprocessing", "prime_ext")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
INDEX = ROOT / "docs" / "index.md"
VERLS = {"sft_trainer_engine"}


@functools.cache
def tokens_of(page: Path) -> list[Token]:
    """The parts of a page, those inside paragraphs and tables too."""
    blocks = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    return [token for block in blocks for token in (block, *(block.children or ()))]


def links_of(page: Path) -> Iterator[tuple[Path, str]]:
    """File and anchor of every link to something in this repository."""
    for token in tokens_of(page):
        target = str(token.attrGet("href") or token.attrGet("src") or "")
        if target and not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


@functools.cache
def anchors_of(page: Path) -> set[str]:
    """Names of the headings, as GitHub makes them."""
    parts = tokens_of(page)
    titles = [parts[place + 1].content for place, token in enumerate(parts) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands_of(page: Path) -> list[str]:
    return [token.content for token in tokens_of(page) if token.type == "fence" and token.info == "bash"]


def is_command(module: str) -> bool:
    """Whether ``python -m`` finds it."""
    spec = find_spec(module)
    return spec is not None and (spec.submodule_search_locations is None or find_spec(f"{module}.__main__") is not None)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere_and_commands_start_something(page):
    for path, anchor in links_of(page):
        assert path.exists(), f"a link to {path}"
        assert not anchor or anchor in anchors_of(path), f"a link to {path}#{anchor}"
    for command in commands_of(page):
        for module in re.findall(r"python -m ([\w.]+)", command):
            assert is_command(module), f"python -m {module}"
        for path in re.findall(rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w./-]+\.(?:sh|py|yaml)\b", command):
            assert (ROOT / path).is_file(), path
        for name in set(re.findall(r"--config-name[= ](\w+)", command)) - VERLS:
            with initialize_config_module("prime_ext.config", version_base=None):
                assert compose(name), name


def test_every_page_can_be_reached_from_the_index():
    found, todo = set(), [INDEX]
    while todo:
        page = todo.pop()
        if page not in found and page.suffix == ".md":
            found.add(page)
            todo += [path for path, _ in links_of(page)]
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - found == set()
