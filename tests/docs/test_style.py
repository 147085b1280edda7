# SPDX-License-Identifier: Apache-2.0
"""Habits of wording from docs/style.md: lower a limit when its count falls, never raise one."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("prime_ext", "eval", "data_preprocessing", "recipes", "examples", "docs", "tests")
PATTERNS = {
    "is no": r"(?<![Tt]here )\b(?:is|are) no\b(?! longer| more than)",
    "behind, beside": r"\b(?:behind|beside)\b",
    "so many": r"\bso many\b",
    "def x_of": r"\bdef _?[a-z]+_of\(",
}
DOCSTRING = re.compile(r"(?:As|How|Of|That|Those|What|Where|Whether|Which|Who)\b")
LIMITS = {"is no": 0, "behind, beside": 0, "so many": 0, "def x_of": 50, "docstring": 0}


def docstrings(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_habits_become_rarer():
    counts = dict.fromkeys(LIMITS, 0)
    for path in (
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md")
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
    assert all(counts[habit] <= limit for habit, limit in LIMITS.items()), counts
