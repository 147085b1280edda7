# SPDX-License-Identifier: Apache-2.0
"""Tests written as code: HumanEval, MBPP and LeetCode as a script and entry points.

Tests are trusted, and only parsed here. They alone decide which names belong to the solution: a
solution that could choose would choose ``set`` or ``isclose``.
"""

import ast
import builtins
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prime_ext.verifiers.sandbox.harness import NODES


class MalformedTests(ValueError):
    """Test cases that allow no verdict, so that the grader fails. The message says why."""


@dataclass(frozen=True)
class AssertionProblem:
    """Tests as code."""

    setup: str  # before the program: imports, helpers, def check
    tests: str  # a script that asserts
    entry_points: tuple[str, ...]  # names that the solution has to define
    context: str = ""  # trusted code that the solution may build on: the prompt with its helpers


def read_test_code(test_cases: Mapping[str, Any]) -> AssertionProblem:
    """Return HumanEval's or LeetCode's tests (``test``, optionally ``prompt``, ``entry_point``)."""
    test = _string(test_cases, "test")
    entry_point = test_cases.get("entry_point")
    tree = _parse(test)
    if not isinstance(entry_point, str):
        # An assertion in a function that nothing calls tests nothing.
        statements = [
            node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)
        ]
        asserts = any(
            isinstance(child, ast.Assert) for node in statements for child in ast.walk(node)
        )
        return AssertionProblem(
            "", test if asserts else "", _entry_points([test]) if asserts else ()
        )
    if not any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body):
        raise MalformedTests("the test defines no check(candidate)")
    # Some tests need the prompt's helpers (find_zero checks with poly), which are trusted unlike
    # the solution's copies. The entry point is completed with a body and then replaced.
    prompt = _string(test_cases, "prompt") if "prompt" in test_cases else ""
    context = _complete(prompt)
    return AssertionProblem(f"{context}\n{test}", f"check({entry_point})", (entry_point,), context)


def read_test_list(test_cases: Mapping[str, Any]) -> AssertionProblem:
    """Return MBPP's tests, of ``test_list`` and optional imports, set-up code and entry point."""
    tests = test_cases.get("test_list")
    imports = test_cases.get("test_imports") or []
    for name, value in (("test_list", tests), ("test_imports", imports)):
        if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
            raise MalformedTests(f"{name} must be a list of strings")
    assert isinstance(tests, list)
    setup = "\n".join(imports)
    entry_point = test_cases.get("entry_point")
    # It may use classes of the solution, so it runs in front of the first test.
    if tests and (preparation := test_cases.get("test_setup_code")):
        tests = [f"{preparation}\n{tests[0]}", *tests[1:]]
    names: tuple[str, ...] = ()
    if isinstance(entry_point, str):
        names = (entry_point,)
    elif tests:
        names = _entry_points([setup, *tests])
    return AssertionProblem(setup, "\n".join(tests), names)


def _complete(prompt: str) -> str:
    """Give the function at the end of a prompt a body if it has none."""
    with contextlib.suppress(MalformedTests):
        _parse(prompt)
        return prompt
    text = prompt + "\n    pass\n"
    _parse(text, "the prompt is")
    return text


def _string(test_cases: Mapping[str, Any], key: str) -> str:
    value = test_cases.get(key)
    if not isinstance(value, str):
        raise MalformedTests(f"{key} must be a string")
    return value


def _parse(code: str, what: str = "the tests are") -> ast.Module:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MalformedTests(f"{what} not Python: {error}") from error


def _names(trees: Iterable[ast.Module]) -> tuple[list[str], set[str]]:
    called: dict[str, None] = {}
    defined: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called[node.func.id] = None
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                defined.add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.arg):
                defined.add(node.arg)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                defined.update(
                    (alias.asname or alias.name).partition(".")[0] for alias in node.names
                )
    return list(called), defined


def _entry_points(codes: Iterable[str]) -> tuple[str, ...]:
    """Return the names that the tests call but do not define.

    If these are all built-ins (MBPP: ``sum``), return the one in all tests.
    """
    trees = [tree for tree in map(_parse, codes) if tree.body]
    called, defined = _names(trees)
    free = [name for name in called if name not in defined]
    unknown = [name for name in free if not hasattr(builtins, name) and name not in NODES]
    if unknown:
        return tuple(unknown)
    everywhere = [name for name in free if all(name in _names([tree])[0] for tree in trees)]
    if len(everywhere) == 1:
        return (everywhere[0],)
    raise MalformedTests("the tests do not show which function they test; give entry_point")
