# SPDX-License-Identifier: Apache-2.0
r"""The task of the quickstart, "last-digit chain": mental arithmetic with visible steps, checked by a rule.

A prompt is a start digit and 4 to 7 operations, applied from left to right (no precedence), every value modulo 10:
``3*9+6*7?``. The response shows every step and boxes the last value: ``3*9=7;7+6=3;3*7=1;\boxed{1}``. Operations are
``+`` and ``-`` by 1 to 9 and ``*`` by 3, 7 or 9: all are invertible modulo 10, so that only a second wrong step can
cancel one.

The warm start imitates noisy demonstrators. Every fact ``a op b`` has a probability of error, drawn from a Beta
distribution with the wanted mean, and one fixed wrong result, from which the demonstrator goes on. A model trained on
this has systematic misconceptions, which reinforcement learning can mend.
"""

import hashlib
import operator as operators
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from prime_ext.verifiers.math import MathVerifier

DATA_SOURCE = "prime_ext/last_digit_chain"
OPERANDS = {"+": tuple(range(1, 10)), "-": tuple(range(1, 10)), "*": (3, 7, 9)}
CHAIN_LENGTHS = (4, 5, 6, 7)
_APPLY = {"+": operators.add, "-": operators.sub, "*": operators.mul}

# Percent of all prompts, by hash, in each split: disjoint whatever the seeds and sizes.
SPLITS = {"test": (0, 10), "val": (10, 15), "sft": (15, 60), "train": (60, 100)}

# Of the Beta distribution of error probabilities: small, so that most facts are known well or mistaken often.
MISCONCEPTION_CONCENTRATION = 2.4

_PROMPT = re.compile(r"(\d)((?:[+\-*]\d)+)\?")
_OPERATION = re.compile(r"([+\-*])(\d)")
_STEP = re.compile(r"(\d)([+\-*])(\d)=(\d)")

_verifier = MathVerifier()


def apply_operation(value: int, operator: str, operand: int) -> int:
    """Return ``value operator operand`` modulo 10; the operator is ``+``, ``-`` or ``*``."""
    return _APPLY[operator](value, operand) % 10


@dataclass(frozen=True)
class Problem:
    """A start digit and the operations applied to it from left to right."""

    start: int
    operations: tuple[tuple[str, int], ...]

    @property
    def prompt(self) -> str:
        return f"{self.start}{''.join(f'{operator}{operand}' for operator, operand in self.operations)}?"

    @property
    def answer(self) -> int:
        value = self.start
        for operator, operand in self.operations:
            value = apply_operation(value, operator, operand)
        return value


def parse_prompt(prompt: str) -> Problem:
    """Read a problem from its prompt. ``ValueError``: the text is not a prompt of this task."""
    match = _PROMPT.fullmatch(prompt)
    if match is None:
        raise ValueError(f"not a last-digit chain such as '3*9+6?': {prompt!r}")
    operations = tuple((operator, int(operand)) for operator, operand in _OPERATION.findall(match[2]))
    return Problem(start=int(match[1]), operations=operations)


def split_of(prompt: str, splits: Mapping[str, tuple[int, int]] = SPLITS) -> str:
    """Return the split of a prompt (``test``, ``val``, ``sft`` or ``train``) by a hash of its text."""
    bucket = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") % 100
    return next(name for name, (low, high) in splits.items() if low <= bucket < high)


def error_probability(mean_error: float, rng: random.Random) -> float:
    """Draw from Beta(2.4 m, 2.4 (1 - m)) with mean m = ``mean_error``. ``ValueError``: it is outside [0, 1)."""
    if not 0 <= mean_error < 1:
        raise ValueError(f"mean_error must be in [0, 1), got {mean_error}")
    alpha, beta = MISCONCEPTION_CONCENTRATION * mean_error, MISCONCEPTION_CONCENTRATION * (1 - mean_error)
    return rng.betavariate(alpha, beta) if mean_error > 0 else 0.0


def generate_problems(split: str, count: int, seed: int, chain_lengths: Sequence[int] = CHAIN_LENGTHS) -> list[Problem]:
    """Draw ``count`` different problems of one split; the chain length is uniform over ``chain_lengths``.

    ``ValueError``: the split is unknown, or too small.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {sorted(SPLITS)}, got {split!r}")
    low, high = SPLITS[split]
    per_operation = sum(len(operands) for operands in OPERANDS.values())
    smallest = 10 * per_operation ** min(chain_lengths) * (high - low) / 100
    if count > 0.5 * smallest * len(chain_lengths):
        raise ValueError(f"{count} different problems are too many for split {split!r} with chains {chain_lengths}")
    rng = random.Random(f"{split}-{seed}")
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        operations = []
        for _ in range(rng.choice(chain_lengths)):
            operator = rng.choice("+-*")
            operations.append((operator, rng.choice(OPERANDS[operator])))
        problem = Problem(start=rng.randrange(10), operations=tuple(operations))
        if split_of(problem.prompt) == split:
            problems[problem.prompt] = problem
    return list(problems.values())


class Misconception(NamedTuple):
    """A fact that a demonstrator sometimes gets wrong."""

    error_probability: float
    wrong_result: int


def draw_misconceptions(mean_error: float, seed: int) -> dict[tuple[int, str, int], Misconception]:
    """Draw a misconception for each fact ``(value, operator, operand)``, uniform over the nine wrong results."""
    rng = random.Random(seed)
    table = {}
    for value in range(10):
        for operator, operands in OPERANDS.items():
            for operand in operands:
                probability = error_probability(mean_error, rng)
                wrong = (apply_operation(value, operator, operand) + rng.randint(1, 9)) % 10
                table[value, operator, operand] = Misconception(probability, wrong)
    return table


def demonstrate(problem: Problem, misconceptions: dict[tuple[int, str, int], Misconception], rng: random.Random) -> str:
    """Write the response of a noisy demonstrator, who goes on from a wrong value."""
    value, parts = problem.start, []
    for operator, operand in problem.operations:
        fact = misconceptions[value, operator, operand]
        wrong = rng.random() < fact.error_probability
        result = fact.wrong_result if wrong else apply_operation(value, operator, operand)
        parts.append(f"{value}{operator}{operand}={result};")
        value = result
    return f"{''.join(parts)}\\boxed{{{value}}}"


def solve(problem: Problem) -> str:
    return demonstrate(problem, draw_misconceptions(0.0, seed=0), random.Random(0))


@dataclass(frozen=True)
class StepCheck:
    """One visible step and its correctness."""

    text: str  # without ;
    start: int  # offset of the first character in the response
    result: int | None  # offset of the result digit, None if the step is not of the form a op b = c
    follows_prompt: bool  # starts from the value stated before, right or wrong, and applies the next operation
    arithmetic_right: bool  # a op b = c is true modulo 10

    @property
    def locally_right(self) -> bool:
        """Return whether the step is right, even if an earlier one was not."""
        return self.follows_prompt and self.arithmetic_right


def check_steps(prompt: str, response: str) -> list[StepCheck]:
    """Check each step, a piece of the response that ends in ``;``, for local correctness."""
    problem = parse_prompt(prompt)
    checks: list[StepCheck] = []
    offset, value = 0, problem.start
    for index, text in enumerate(response.split(";")[:-1]):
        match = _STEP.fullmatch(text)
        result, follows, right = None, False, False
        if match is not None:
            left, operator, operand, stated = int(match[1]), match[2], int(match[3]), int(match[4])
            is_next = index < len(problem.operations) and problem.operations[index] == (operator, operand)
            result, follows = offset + match.start(4), is_next and left == value
            right = apply_operation(left, operator, operand) == stated
            value = stated
        checks.append(StepCheck(text, offset, result, follows_prompt=follows, arithmetic_right=right))
        offset += len(text) + 1
    return checks


def outcome_reward(response: str, ground_truth: str) -> float:
    """Return 1.0 if the last box holds the ground truth, else 0.0. ``RuntimeError``: the verifier could not decide."""
    verdict = _verifier.verify(response, ground_truth)
    if verdict.score is None:
        raise RuntimeError(f"the verifier could not judge {response!r}: {verdict.detail}")
    return verdict.score


def generated(split: str, count: int, seed: int) -> Iterator[Mapping[str, Any]]:
    """Yield rows of the quickstart's task. ``ValueError``: there are not enough problems."""
    for problem in generate_problems({"validation": "val"}.get(split, split), count, seed):
        yield {"problem": problem.prompt, "answer": str(problem.answer), "operations": len(problem.operations)}


GENERATED = {"last_digit_chain": generated}
