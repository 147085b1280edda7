# SPDX-License-Identifier: Apache-2.0
r"""The quickstart's task, "last-digit chain": mental arithmetic in steps, checked by a rule.

A prompt is a start digit and 4 to 7 operations, applied from left to right (no precedence), every
value modulo 10: ``3*9+6*7?``. The response shows every step and boxes the last value:
``3*9=7;7+6=3;3*7=1;\boxed{1}``. Operations are ``+`` and ``-`` by 1 to 9 and ``*`` by 3, 7 or 9.
All are invertible modulo 10: only a second wrong step can cancel one.
"""

import hashlib
import operator as operators
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prime_ext.verifiers.math import MathVerifier

DATA_SOURCE = "prime_ext/last_digit_chain"
OPERANDS = {"+": tuple(range(1, 10)), "-": tuple(range(1, 10)), "*": (3, 7, 9)}
CHAIN_LENGTHS = (4, 5, 6, 7)
_APPLY = {"+": operators.add, "-": operators.sub, "*": operators.mul}

# Percent of all prompts, by hash, in each split: disjoint whatever the seeds and sizes.
SPLITS = {"test": (0, 10), "val": (10, 15), "sft": (15, 60), "train": (60, 100)}

# Of the Beta distribution of error probabilities: small, so that most facts are known well or
# mistaken often.
MISCONCEPTION_CONCENTRATION = 2.4

_PROMPT = re.compile(r"(\d)((?:[+\-*]\d)+)\?")
_OPERATION = re.compile(r"([+\-*])(\d)")

_verifier = MathVerifier()


def apply_operation(value: int, operator: str, operand: int) -> int:
    """Return ``value operator operand`` modulo 10; the operator is ``+``, ``-`` or ``*``."""
    return _APPLY[operator](value, operand) % 10


@dataclass(frozen=True)
class ChainProblem:
    """A start digit and the operations applied to it from left to right."""

    start: int
    operations: tuple[tuple[str, int], ...]

    @property
    def prompt(self) -> str:
        operations = (f"{operator}{operand}" for operator, operand in self.operations)
        return f"{self.start}{''.join(operations)}?"

    @property
    def answer(self) -> int:
        value = self.start
        for operator, operand in self.operations:
            value = apply_operation(value, operator, operand)
        return value


def parse_prompt(prompt: str) -> ChainProblem:
    """Read a problem from its prompt. ``ValueError``: the text is not a prompt of this task."""
    match = _PROMPT.fullmatch(prompt)
    if match is None:
        raise ValueError(f"not a last-digit chain such as '3*9+6?': {prompt!r}")
    operations = tuple(
        (operator, int(operand)) for operator, operand in _OPERATION.findall(match[2])
    )
    return ChainProblem(start=int(match[1]), operations=operations)


def get_split(prompt: str, splits: Mapping[str, tuple[int, int]] = SPLITS) -> str:
    """Return a prompt's split (``test``, ``val``, ``sft`` or ``train``), by a hash of its text."""
    bucket = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") % 100
    return next(name for name, (low, high) in splits.items() if low <= bucket < high)


def error_probability(mean_error: float, rng: random.Random) -> float:
    """Draw from Beta(2.4 m, 2.4 (1 - m)), m = ``mean_error``. ``ValueError``: not in [0, 1)."""
    if not 0 <= mean_error < 1:
        raise ValueError(f"mean_error must be in [0, 1), got {mean_error}")
    alpha = MISCONCEPTION_CONCENTRATION * mean_error
    beta = MISCONCEPTION_CONCENTRATION * (1 - mean_error)
    return rng.betavariate(alpha, beta) if mean_error > 0 else 0.0


def generate_problems(
    split: str, count: int, seed: int, chain_lengths: Sequence[int] = CHAIN_LENGTHS
) -> list[ChainProblem]:
    """Draw ``count`` different problems of one split; the length is uniform in ``chain_lengths``.

    ``ValueError``: the split is unknown, or too small.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {sorted(SPLITS)}, got {split!r}")
    low, high = SPLITS[split]
    per_operation = sum(len(operands) for operands in OPERANDS.values())
    smallest = 10 * per_operation ** min(chain_lengths) * (high - low) / 100
    if count > 0.5 * smallest * len(chain_lengths):
        raise ValueError(
            f"{count} different problems are too many for split {split!r} with chains"
            f" {chain_lengths}"
        )
    rng = random.Random(f"{split}-{seed}")
    problems: dict[str, ChainProblem] = {}
    while len(problems) < count:
        operations = []
        for _ in range(rng.choice(chain_lengths)):
            operator = rng.choice("+-*")
            operations.append((operator, rng.choice(OPERANDS[operator])))
        problem = ChainProblem(start=rng.randrange(10), operations=tuple(operations))
        if get_split(problem.prompt) == split:
            problems[problem.prompt] = problem
    return list(problems.values())


def outcome_reward(response: str, ground_truth: str) -> float:
    """Return 1.0 if the last box holds the truth, else 0.0. ``RuntimeError``: no decision."""
    verdict = _verifier.verify(response, ground_truth)
    if verdict.score is None:
        raise RuntimeError(f"the verifier could not judge {response!r}: {verdict.detail}")
    return verdict.score


def generate_rows(split: str, count: int, seed: int) -> Iterator[Mapping[str, Any]]:
    """Yield rows of the quickstart's task. ``ValueError``: there are not enough problems."""
    for problem in generate_problems({"validation": "val"}.get(split, split), count, seed):
        yield {
            "problem": problem.prompt,
            "answer": str(problem.answer),
            "operations": len(problem.operations),
        }


GENERATED = {"last_digit_chain": generate_rows}
