# SPDX-License-Identifier: Apache-2.0
"""A calculator as a tool of verl's tool agent loop: whole numbers with + - * and parentheses.

    tools:
      - class_name: prime_ext.verl_adapter.tools.calculator_tool.CalculatorTool
        config: {type: native, rewards: {malformed: -0.1}}

Python's parser reads what the policy writes, and nothing is evaluated as a program. The length of
the text and the digits of every number are bounded, so that no expression costs more than a
fraction of a millisecond.
"""

import ast
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from operator import add, mul, sub
from typing import Any

from verl.tools.schemas import OpenAIFunctionToolSchema

from prime_ext.verl_adapter.tools.counted_tool import CountedTool, build_schema

OUTCOMES = ("result", "malformed", "error", "timeout")
# Field of a rollout's extra_fields with the number of calls by outcome.
FIELD = "calculator"
TIMED_OUT = "the calculation took too long"
_MOST_CHARACTERS = 200

_KNOWN = "digits, + - * and parentheses are known"
_OTHER = re.compile(r"[^-0-9+*() \t]")
_NUMBER = re.compile("[0-9]+")
_LEADING_ZEROS = re.compile(r"\b0+(?=[0-9])")
_OPERATORS: dict[type, Callable[[int, int], int]] = {ast.Add: add, ast.Sub: sub, ast.Mult: mul}


class Refused(ValueError):
    """Rejection: ``malformed`` (no expression), ``error`` (too large a number) or ``timeout``."""

    def __init__(self, outcome: str, message: str):
        super().__init__(message)
        self.outcome = outcome


def calculate(text: str, most_digits: int = 30) -> int:
    """Return the value of an expression such as ``-(2 + 3) * 4``.

    ``most_digits`` bounds every number and intermediate result. Raises ``Refused``, with one line
    for the policy.
    """
    if len(text) > _MOST_CHARACTERS:
        raise Refused("malformed", f"the expression has more than {_MOST_CHARACTERS} characters")
    text = text.strip()
    if other := _OTHER.search(text):
        raise Refused("malformed", f"unexpected {other[0]!r}; {_KNOWN}")
    if not text or text[-1] in "+-*(":
        raise Refused("malformed", "a number is missing at the end")
    if any(len(number) > most_digits for number in _NUMBER.findall(text)):
        raise Refused("error", f"a number has more than {most_digits} digits")
    try:
        # Python refuses leading zeros.
        tree = ast.parse(_LEADING_ZEROS.sub("", text), mode="eval")
    except (SyntaxError, RecursionError, MemoryError):
        raise Refused("malformed", f"this is not an expression; {_KNOWN}") from None
    return _value(tree.body, most_digits)


def _value(node: ast.expr, most_digits: int) -> int:
    if isinstance(node, ast.Constant):
        return int(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, most_digits)
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATORS:
        raise Refused("malformed", f"this is not an expression; {_KNOWN}")
    result = _OPERATORS[type(node.op)](
        _value(node.left, most_digits), _value(node.right, most_digits)
    )
    if abs(result) >= 10**most_digits:
        raise Refused("error", f"a result has more than {most_digits} digits")
    return result


SCHEMA = build_schema(
    "calculator",
    "Calculates with whole numbers: + - * and parentheses.",
    "expression",
    "such as (2 + 3) * 4",
)


class CalculatorTool(CountedTool):
    """``calculator(expression)``, which answers with the result or one line of explanation.

    ``config`` may have ``rewards``, ``most_digits`` (30), and ``timeout_share``: share of calls
    that are answered as if they had taken too long, for agents that must learn to call again. A
    hash of the trajectory so far chooses them, so that a run can be repeated. ``ValueError``: a
    wrong outcome or share.
    """

    schema = SCHEMA
    known_outcomes = OUTCOMES

    def __init__(
        self, config: Mapping[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None
    ):
        super().__init__(config, tool_schema)
        self._most_digits = int(config.get("most_digits", 30))
        self._timeout_share = float(config.get("timeout_share", 0.0))
        if not 0.0 <= self._timeout_share <= 1.0:
            raise ValueError(
                f"timeout_share={self._timeout_share:g} of the calculator is not in [0, 1]"
            )

    async def run(self, text: str, agent_data: Any) -> tuple[str, str]:
        try:
            if self._timeout_share and agent_data is not None:
                if _hash_tokens(agent_data.prompt_ids) < self._timeout_share:
                    raise Refused("timeout", TIMED_OUT)
            return "result", str(calculate(text, self._most_digits))
        except Refused as refused:
            return refused.outcome, f"Error: {refused}"


def _hash_tokens(tokens: Sequence[int]) -> float:
    """Hash tokens to a number in [0, 1)."""
    digest = hashlib.blake2b(repr(list(tokens)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
