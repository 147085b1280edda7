# SPDX-License-Identifier: Apache-2.0
"""Habits of wording and of naming that docs/style.md names occur nowhere."""

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
# Names that do not say what they hold, words that a reader cannot interpret, nouns for functions.
VAGUE = {"own", "part", "place", "given", "one", "wanted", "said", "told", "asked"}
VAGUE |= {"pay", "price", "found"}
ODD = {"companion", "crew", "hire", "meet", "died", "price", "priced"}
NOUNS = {"damage", "refusal", "gain", "series"}
ALLOWED = {"WorkerDied"}
CODE = ("prime_ext", "eval", "data_preprocessing", "recipes", "examples")
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


def bound_names(tree):
    """Yield the names that a module binds, with the node that does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node
        elif isinstance(node, ast.arg):
            yield node.arg, node
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, node
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name, node


def is_odd(name, node):
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
    lower = {word.lower() for word in words}
    if name in ALLOWED or not words:
        return False
    if "_".join(word.lower() for word in words) in VAGUE or lower & ODD:
        return True
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    # A function that returns a text does not write it.
    is_text = isinstance(node.returns, ast.Name) and node.returns.id == "str"
    return name.strip("_") in NOUNS or (is_text and words[0] == "write")


def test_code_binds_no_vague_names():
    assert is_odd("_wanted", None) and is_odd("PricedChain", None)
    assert not is_odd("wanted_rows", None) and not is_odd("WorkerDied", None)
    odd = [
        f"{path.relative_to(ROOT)}:{node.lineno} {bound}"
        for folder in CODE
        for path in (ROOT / folder).rglob("*.py")
        for bound, node in bound_names(ast.parse(path.read_text()))
        if is_odd(bound, node)
    ]
    assert not odd
