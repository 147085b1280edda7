# SPDX-License-Identifier: Apache-2.0
"""A calculator as a tool of verl's tool agent loop: whole numbers with + - * and parentheses.

    tools:
      - class_name: prime_ext.tasks.calculator_tool.CalculatorTool
        config: {type: native, rewards: {malformed: -0.1}}

The parser below reads what the policy writes; nothing is evaluated as a program. The length of the text and the digits
of every number are bounded, so that no expression costs more than a fraction of a millisecond.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from verl.tools.schemas import OpenAIFunctionToolSchema

from prime_ext.tasks.counted_tool import CountedTool, schema_of

OUTCOMES = ("result", "malformed", "error", "timeout")
# Field of a rollout's extra_fields with the number of calls by outcome.
FIELD = "calculator"
TIMED_OUT = "the calculation took too long"
_MOST_CHARACTERS = 200

_TOKEN = re.compile(r"[ \t]*(?:([0-9]+)|([-+*()]))")
_RANK = {"(": 0, "+": 1, "-": 1, "*": 2, "negative": 3}


class Refused(ValueError):
    """No result. ``outcome``: ``malformed`` (not an expression), ``error`` (a number is too large) or ``timeout``."""

    def __init__(self, outcome: str, message: str):
        super().__init__(message)
        self.outcome = outcome


def calculate(text: str, most_digits: int = 30) -> int:
    """Return the value of an expression such as ``-(2 + 3) * 4``.

    ``most_digits`` bounds every number and intermediate result. ``Refused``: with one line that the policy can read.
    """
    if len(text) > _MOST_CHARACTERS:
        raise Refused("malformed", f"the expression has more than {_MOST_CHARACTERS} characters")
    text, at, number_next, limit = text.rstrip(), 0, True, 10**most_digits
    values: list[int] = []
    pending: list[str] = []

    def reduce() -> None:
        operator, right = pending.pop(), values.pop()
        if operator == "negative":
            values.append(-right)
            return
        left = values.pop()
        values.append(left * right if operator == "*" else left + right if operator == "+" else left - right)
        if abs(values[-1]) >= limit:
            raise Refused("error", f"a result has more than {most_digits} digits")

    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise Refused(
                "malformed", f"unexpected {text[at:].lstrip()[:1]!r}; digits, + - * and parentheses are known"
            )
        number, symbol = found.groups()
        at = found.end()
        fits = number is not None or symbol in ("(", "-") if number_next else symbol in ("+", "-", "*", ")")
        if not fits:
            raise Refused("malformed", f"unexpected {(number or symbol)[:20]!r}")
        if number is not None:
            if len(number) > most_digits:
                raise Refused("error", f"a number has more than {most_digits} digits")
            values.append(int(number))
            number_next = False
        elif symbol == "(":
            pending.append(symbol)
        elif symbol == ")":
            while pending and pending[-1] != "(":
                reduce()
            if not pending:
                raise Refused("malformed", "a parenthesis is closed that was not opened")
            pending.pop()
        elif number_next:
            pending.append("negative")
        else:
            while pending and _RANK[pending[-1]] >= _RANK[symbol]:
                reduce()
            pending.append(symbol)
            number_next = True
    if number_next:
        raise Refused("malformed", "a number is missing at the end")
    while pending:
        if pending[-1] == "(":
            raise Refused("malformed", "a parenthesis is not closed")
        reduce()
    return values[0]


SCHEMA = schema_of(
    "calculator", "Calculates with whole numbers: + - * and parentheses.", "expression", "such as (2 + 3) * 4"
)


class CalculatorTool(CountedTool):
    """``calculator(expression)``. The answer is the result, or one line that says why there is none.

    ``config`` may have ``rewards``, ``most_digits`` (30), and ``timeout_share``: share of calls that are answered as if
    they had taken too long, for agents that must learn to ask again. A hash of the trajectory so far chooses them, so
    that a run can be repeated. ``ValueError``: a wrong outcome or share.
    """

    schema, known_outcomes = SCHEMA, OUTCOMES

    def __init__(self, config: Mapping[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None):
        super().__init__(config, tool_schema)
        self._most_digits = int(config.get("most_digits", 30))
        self._timeout_share = float(config.get("timeout_share", 0.0))
        if not 0.0 <= self._timeout_share <= 1.0:
            raise ValueError(f"timeout_share={self._timeout_share:g} of the calculator is not in [0, 1]")

    async def run(self, text: str, agent_data: Any) -> tuple[str, str]:
        try:
            if self._timeout_share and agent_data is not None:
                if _share_of(agent_data.prompt_ids) < self._timeout_share:
                    raise Refused("timeout", TIMED_OUT)
            return "result", str(calculate(text, self._most_digits))
        except Refused as refused:
            return refused.outcome, f"Error: {refused}"


def _share_of(tokens: Sequence[int]) -> float:
    """Hash tokens to a number in [0, 1)."""
    digest = hashlib.blake2b(repr(list(tokens)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
