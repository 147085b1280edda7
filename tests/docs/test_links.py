# SPDX-License-Identifier: Apache-2.0
"""Every page is at most two clicks from docs/index.md, and what pages link to and name exists."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import FOLDERS, PAGES, ROOT, get_tokens, shell_blocks

INDEX = ROOT / "docs" / "index.md"


def get_links(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield file and anchor of every link to something in this repository."""
    for token in get_tokens(page):
        target = str(token.attrGet("href") or token.attrGet("src") or "")
        if target and not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


@functools.cache
def get_anchors(page: Path) -> set[str]:
    """Return names of the headings, as GitHub makes them."""
    parts = get_tokens(page)
    titles = [
        parts[place + 1].content
        for place, token in enumerate(parts)
        if token.type == "heading_open"
    ]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere_and_named_files_are_there(page):
    for path, anchor in get_links(page):
        assert path.exists(), f"a link to {path}"
        assert not anchor or anchor in get_anchors(path), f"a link to {path}#{anchor}"
    for block in shell_blocks(page):
        for path in re.findall(
            rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w./-]+\.(?:sh|py|yaml)\b", block
        ):
            assert (ROOT / path).is_file(), path


def test_every_page_is_at_most_two_clicks_from_the_index():
    reached = {INDEX}
    for _ in range(2):
        reached |= {path for page in reached if page.suffix == ".md" for path, _ in get_links(page)}
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - reached == set()


def list_files(folder: str, kind: str) -> list[str]:
    return [path.stem for path in sorted((ROOT / folder).glob(f"*.{kind}"))]


@pytest.mark.parametrize(
    ("results", "makers"),
    [
        ("recipes/studies/results", ("recipes/studies", "yaml")),
        ("tests/benchmarks", ("tests/benchmarks", "py")),
    ],
)
def test_stored_results_have_a_maker_or_are_listed_as_retired(results, makers):
    retired = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "retired.md").read_text()))
    made = tuple(list_files(*makers))
    stored = list_files(results, "json")
    assert len(stored) > 3
    assert [name for name in stored if name not in retired and not name.startswith(made)] == []


@pytest.mark.parametrize("page", ["verifiers.md", "verifier_rules.md"])
def test_modules_named_in_a_section_are_in_its_folders(page):
    text = (ROOT / "docs" / "reference" / page).read_text()
    sections = re.split(r"^##+ ", text, flags=re.MULTILINE)[1:]
    checked = 0
    for section in sections:
        title, _, body = section.partition("\n")
        folders = re.findall(r"`(prime_ext/[\w/]+)/`", title) or ["prime_ext/verifiers"]
        for name in re.findall(r"`(\w+\.py)`", body):
            assert [f for f in folders if list((ROOT / f).rglob(name))], f"{title}: {name}"
            checked += 1
    assert checked or page != "verifiers.md"
