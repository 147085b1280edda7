# SPDX-License-Identifier: Apache-2.0
"""EvalPlus' rows (HumanEval+, MBPP+) as tests: a program must agree with the reference solution on every input.

The expected outputs are computed by the reference solution beside the tests, in the sandbox, as EvalPlus computes them
(arXiv 2305.01210). Its own executor, which runs programs with the rights of whoever calls it, is not used.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prime_ext.verifiers.code import evalplus_oracle
from prime_ext.verifiers.code.assertions import AssertionTests, UnreadableTests, completed

BASE, PLUS = "base", "plus"
_TEXTS = ("task_id", "prompt", "canonical_solution", "entry_point")


def from_evalplus(row: Mapping[str, Any]) -> AssertionTests:
    """The tests of a row: those of the original set (``base``), then EvalPlus' own (``plus``), one per input.

    Args:
        row: ``task_id``, ``prompt``, ``entry_point``, ``canonical_solution``, ``base_input``, ``atol``, and
            ``plus_input`` unless only the original tests are wanted.

    Raises:
        UnreadableTests: a key is missing, or not what EvalPlus writes.
    """
    texts = {key: row.get(key) for key in _TEXTS}
    for key, value in texts.items():
        if not isinstance(value, str) or not value:
            raise UnreadableTests(f"{key} must be a text")
    if not str(texts["entry_point"]).isidentifier():
        raise UnreadableTests(f"entry_point {texts['entry_point']!r} is no name")
    inputs = {}
    for part, key in ((BASE, "base_input"), (PLUS, "plus_input")):
        inputs[part] = row.get(key, [] if part == PLUS else None)
        if not isinstance(inputs[part], list) or not all(isinstance(values, list) for values in inputs[part]):
            raise UnreadableTests(f"{key} must be a list of lists of arguments")
    tolerance = row.get("atol", 0)
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not tolerance >= 0:
        raise UnreadableTests(f"atol must be a number of at least 0, got {tolerance!r}")
    values = [*inputs[BASE], *inputs[PLUS]]
    settings = {**texts, "inputs": values, "atol": tolerance}
    # The oracle goes along as source, for the sandbox reads no files of this package, and into a namespace of its own,
    # for the function under test may bear any name.
    setup = (
        f"_evalplus = {{}}\nexec({_oracle()!r}, _evalplus)\n"
        f"_evalplus_check = _evalplus['make_check'](**json.loads({json.dumps(settings)!r}))\n"
    )
    name = str(texts["entry_point"])
    parts = {BASE: len(inputs[BASE]), **({PLUS: len(values)} if "plus_input" in row else {})}
    return AssertionTests(
        setup,
        tuple(f"_evalplus_check({name}, {index})" for index in range(len(values))),
        (name,),
        # MBPP's prompt is a docstring; HumanEval's begins the function, and may define helpers before it.
        completed(str(texts["prompt"])),
        parts=tuple(parts.items()),
    )


def _oracle() -> str:
    return Path(evalplus_oracle.__file__).read_text(encoding="utf-8")
