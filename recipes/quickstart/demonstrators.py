# SPDX-License-Identifier: Apache-2.0
"""Demonstrators of the quickstart's task, and the rule that checks steps.

The warm start imitates noisy demonstrators. Every fact ``a op b`` has a probability of error,
drawn from a Beta distribution with a given mean, and one fixed wrong result, from which the
demonstrator continues. A model trained on this has systematic misconceptions, which reinforcement
learning can mend.
"""

import random
import re
from dataclasses import dataclass
from typing import NamedTuple

from prime_ext.tasks.last_digit_chain import (
    OPERANDS,
    ChainProblem,
    apply_operation,
    error_probability,
    parse_prompt,
)

_STEP = re.compile(r"(\d)([+\-*])(\d)=(\d)")


class Misconception(NamedTuple):
    """A fact that a demonstrator sometimes gets wrong."""

    error_probability: float
    wrong_result: int


def draw_misconceptions(mean_error: float, seed: int) -> dict[tuple[int, str, int], Misconception]:
    """Draw a misconception per fact ``(value, operator, operand)``, uniform over wrong results."""
    rng = random.Random(seed)
    table = {}
    for value in range(10):
        for operator, operands in OPERANDS.items():
            for operand in operands:
                probability = error_probability(mean_error, rng)
                wrong = (apply_operation(value, operator, operand) + rng.randint(1, 9)) % 10
                table[value, operator, operand] = Misconception(probability, wrong)
    return table


def demonstrate(
    problem: ChainProblem,
    misconceptions: dict[tuple[int, str, int], Misconception],
    rng: random.Random,
) -> str:
    """Write the response of a noisy demonstrator, who continues from a wrong value."""
    value = problem.start
    parts = []
    for operator, operand in problem.operations:
        fact = misconceptions[value, operator, operand]
        wrong = rng.random() < fact.error_probability
        result = fact.wrong_result if wrong else apply_operation(value, operator, operand)
        parts.append(f"{value}{operator}{operand}={result};")
        value = result
    return f"{''.join(parts)}\\boxed{{{value}}}"


def solve(problem: ChainProblem) -> str:
    return demonstrate(problem, draw_misconceptions(0.0, seed=0), random.Random(0))


@dataclass(frozen=True)
class StepCheck:
    """One visible step and its correctness."""

    text: str  # without ;
    start: int  # offset of the first character in the response
    result: int | None  # offset of the result digit, None if the step is not of the form a op b = c
    follows_prompt: (
        bool  # starts from the value stated before, right or wrong, and applies the next operation
    )
    arithmetic_right: bool  # a op b = c is true modulo 10

    @property
    def locally_right(self) -> bool:
        """Return whether the step is right, even if an earlier one was not."""
        return self.follows_prompt and self.arithmetic_right


def check_steps(prompt: str, response: str) -> list[StepCheck]:
    """Check each step, a piece of the response that ends in ``;``, for local correctness."""
    problem = parse_prompt(prompt)
    checks: list[StepCheck] = []
    offset = 0
    value = problem.start
    for index, text in enumerate(response.split(";")[:-1]):
        match = _STEP.fullmatch(text)
        result = None
        follows = False
        right = False
        if match is not None:
            left = int(match[1])
            operator = match[2]
            operand = int(match[3])
            stated = int(match[4])
            is_next = index < len(problem.operations) and problem.operations[index] == (
                operator,
                operand,
            )
            result = offset + match.start(4)
            follows = is_next and left == value
            right = apply_operation(left, operator, operand) == stated
            value = stated
        checks.append(
            StepCheck(text, offset, result, follows_prompt=follows, arithmetic_right=right)
        )
        offset += len(text) + 1
    return checks
