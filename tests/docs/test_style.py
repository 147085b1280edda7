# SPDX-License-Identifier: Apache-2.0
"""Habits of wording that docs/style.md names occur nowhere."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("prime_ext", "eval", "data_preprocessing", "recipes", "examples", "docs", "tests")
SUFFIXES = (".py", ".md", ".sh", ".yaml")
PATTERNS = {
    "is no": r"(?<![Tt]here )\b(?:is|are) no\b(?! longer| more than)",
    "behind, beside": r"\b(?:behind|beside)\b",
    "so many": r"\bso many\b",
    "def x_of": r"\bdef _?[a-z]+_of\(",
}
DOCSTRING = re.compile(r"(?:As|How|Of|That|Those|What|Where|Whether|Which|Who)\b")


def docstrings(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_texts_have_none_of_the_habits():
    counts = dict.fromkeys([*PATTERNS, "docstring"], 0)
    for path in (
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES
    ):
        if path in (Path(__file__), ROOT / "docs" / "style.md"):
            continue
        text = path.read_text()
        for habit, pattern in PATTERNS.items():
            counts[habit] += len(re.findall(pattern, text))
        if path.suffix == ".py":
            counts["docstring"] += sum(
                DOCSTRING.match(text) is not None for text in docstrings(text)
            )
    assert not any(counts.values()), counts
