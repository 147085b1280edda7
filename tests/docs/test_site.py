# SPDX-License-Identifier: Apache-2.0
"""The site of the documentation: it is built without a warning, and what pages link to is on it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_link_of_every_page_leads_to_a_file_of_the_site(site):
    broken = []
    for page in site.rglob("*.html"):
        text = re.sub(r"<(script|style).*?</\1>", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r'(?:href|src)="([^"#?]+)', text):
            if "://" not in link and not link.startswith(("data:", "mailto:", "/")) and page.name != "404.html":
                if not (page.parent / link).exists():
                    broken.append((str(page.relative_to(site)), link))
    assert broken == []


def test_nothing_is_fetched_from_elsewhere(site):
    page = (site / "index.html").read_text()
    fetched = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]+)"', page)
    assert [address for address in fetched if "canonical" not in address] == []


def test_the_api_has_what_docstrings_say(site):
    page = (site / "api" / "prime_ext.algorithms.turns.html").read_text()
    assert "place_turn_rewards" in page and "Raises:" in page and ":func:" not in page and ":data:" not in page


def test_files_of_the_repository_are_shown(site):
    assert "lora_rank" in (site / "repository" / "prime_ext" / "config" / "prm" / "implicit_prm.yaml.html").read_text()
