# SPDX-License-Identifier: Apache-2.0
"""Answers to problems of reasoning-gym, scored by their task in a killable worker.

A gold answer is a Python literal: ``task``, its ``parameters``, ``answer``, ``metadata``. Some
scorers call ``eval`` or sympy's parser, which evaluates Python, on an answer: in the workers the
first reads literals, the second formulas only.

Some scorers pay answers that no solver would give. A strategy is a constant, any piece of the
question, or the gold answer with the other sign. It wins a problem if its answer scores 1 and is
not the gold answer: another text, and not the same number. A task is refused if a strategy wins at
least half of its problems. A constant that is the gold answer of half of the problems, as "yes" may
be, wins none of them. ``tests/support/gym_strategies.py`` searches for such strategies.
"""

import ast
import asyncio
import cmath
import functools
import math
import re
import sys
import time
from collections.abc import Sequence
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

from prime_ext.utils.rows import SourceError
from prime_ext.verifiers.math.answer_extraction import extract
from prime_ext.verifiers.verdict import Verdict, correct, grader_failed, no_answer, wrong
from prime_ext.verifiers.worker_pool import Failure, WorkerPool

# Parameters of every task that are not the library's.
OF_VERIFIER = ("threshold", "extraction")
MAX_CHARACTERS = 600
MAX_DIGITS = 1000  # of a formula's value, where letters are at most 3
_CHARACTERS = re.compile(r"[\w\s.+\-*/()]*")
_EXPONENTIAL = frozenset("exp sinh cosh tanh".split())
_FUNCTIONS = _EXPONENTIAL | frozenset(
    "sqrt log ln Abs sin cos tan asin acos atan asinh acosh atanh".split()
)

# Tasks whose scorers pay an answer that ignores the problem, and such an answer.
REFUSED = {
    "game_of_life_halting": "its scorer takes every answer for right, such as the constant 'x'",
    "propositional_logic": "its scorer pays the constant 'P ∨ Q', and premises that are copied",
    "puzzle24": "its scorer pays the constant '1*2*3*4', as it ignores the numbers of the problem",
}
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?", re.IGNORECASE)


def require(task: str = "") -> None:
    """Raise ``SourceError``: the library is not installed, or ``task`` is refused."""
    if find_spec("reasoning_gym") is None:
        raise SourceError("reasoning-gym is not installed: pip install -e '.[reasoning-gym]'")
    if task in REFUSED:
        raise SourceError(f"{task} of reasoning-gym is refused: {REFUSED[task]}")


def make_dataset(task: str, parameters: str, seed: int = 0, size: int = 1) -> Any:
    """Return a task's data set; ``parameters`` is a literal. Raises whatever the library raises."""
    from reasoning_gym.factory import create_dataset

    task_settings = {
        key: value for key, value in ast.literal_eval(parameters).items() if key not in OF_VERIFIER
    }
    return create_dataset(task, seed=seed, size=size, **task_settings)


# For scores only, as drawing a problem may change a data set.
_scorer = functools.lru_cache(maxsize=64)(make_dataset)


def read_problem(gold: str) -> dict[str, Any]:
    """Read a gold answer. ``ValueError``: no problem of reasoning-gym, or of a refused task."""
    try:
        problem = ast.literal_eval(gold)
        problem = {key: problem[key] for key in ("task", "parameters", "answer", "metadata")}
    except (SyntaxError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"the gold answer is not a problem of reasoning-gym: {gold[:60]!r}"
        ) from error
    try:
        require(problem["task"])
    except SourceError as error:
        raise ValueError(str(error)) from error
    return problem


def is_formula(text: str) -> bool:
    """Return whether sympy may parse a text: a small formula with letters, elementary functions."""
    if len(text) > MAX_CHARACTERS or not _CHARACTERS.fullmatch(text):
        return False
    try:
        return _count_digits(ast.parse(text.strip(), mode="eval").body) <= MAX_DIGITS
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False


def _count_digits(formula: ast.expr) -> float:
    """Return a bound of the decimal digits of a formula's value; inf for what no formula has."""
    match formula:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return math.log10(max(number, 1))
        case ast.Name(id=name) if len(name) == 1 or name == "pi":
            return math.log10(3)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _count_digits(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return max(_count_digits(left), _count_digits(right)) + math.log10(2)
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right):
            return _count_digits(left) + _count_digits(right)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _count_digits(left) * 10 ** min(_count_digits(right), 9)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            digits = _count_digits(argument)
            return 10 ** min(digits, 9) if name in _EXPONENTIAL else digits
    return math.inf


def may_read(answer: str, dataset: Any) -> bool:
    """Return whether a scorer may read an answer; sympy, which runs Python, gets only formulas."""
    return "parse_expr" not in dataset.score_answer.__code__.co_names or is_formula(answer)


def can_state(answer: str, dataset: Any) -> bool:
    """Return whether a box can hold a gold answer, and the scorer may read it."""
    return extract(f"\\boxed{{{answer}}}").answer == answer.strip() and may_read(answer, dataset)


def judge(response: str, gold: str) -> Verdict:
    """Return the verdict on a response, in a worker."""
    started = time.perf_counter()
    problem = read_problem(gold)
    extraction = extract(response, problem["parameters"]["extraction"])
    if extraction.answer is None:
        return no_answer(time.perf_counter() - started, extraction.rule)
    score, detail = score_answer(extraction.answer, problem)
    is_correct = score is not None and score >= problem["parameters"]["threshold"]
    verdict = correct if is_correct else wrong
    return verdict(extraction.answer, time.perf_counter() - started, detail)


def score_answer(answer: str, problem: dict[str, Any]) -> tuple[float | None, str]:
    """Return the score of an answer by its task, or None if it cannot be right; and the reason."""
    task = problem["task"]
    dataset = _scorer(task, repr(problem["parameters"]))
    if not may_read(answer, dataset):
        return None, "not a formula, or too complex"
    try:
        score = dataset.score_answer(answer, problem)
    except Exception as error:
        # It can score the gold answer (data preparation checks that), so this answer is unreadable.
        return None, f"{task} cannot read it: {type(error).__name__}: {error}"
    if score >= 1 and not may_equal(answer, problem["answer"]):
        return None, f"{task} scores {score:.4g}, but it is not the number {problem['answer']}"
    return score, f"{task} scores {score:.4g}"


def read_number(text: str) -> complex | None:
    """Read a text that is one number: decimal, fraction, LaTeX fraction, complex, nan, infinity."""
    plain = re.sub(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}", r"\1/\2", text.replace("−", "-"))
    plain = re.sub(r"[$()\\]|(?<=\d),(?=\d{3}(?!\d))", "", plain).strip()
    plain = re.sub(r"\s*([+-])\s*", r"\1", plain)
    for kind in (Fraction, complex):
        try:
            return complex(kind(re.sub(r"i(?!n)", "j", plain.lower())))
        except (ValueError, ArithmeticError):
            pass
    return None


def may_equal(answer: str, gold: Any) -> bool:
    """Return False if the gold answer is a number, and the answer not one number within 1 % of it.

    Scorers pay other numbers: the first one of a text, without its sign; a prefix; nan.
    """
    expected = read_number(gold) if isinstance(gold, str) else None
    if expected is None or not cmath.isfinite(expected) or answer.strip() == gold.strip():
        return True
    number = read_number(answer)
    if number is None:
        text = re.sub(r"[$()\\]|(?<=\d),(?=\d{3}(?!\d))", "", answer.replace("−", "-"))
        numbers = _NUMBER.findall(text)
        if len(numbers) != 1 or re.search(r"-\s|\b(?:minus|negative|not)\b", text.lower()):
            return False
        number = complex(numbers[0])
    tolerance = 0.0 if expected else 0.01
    return cmath.isclose(number, expected, rel_tol=0.01, abs_tol=tolerance)


def warm_up() -> None:
    """Import the library in a worker, where its ``eval`` of an answer reads literals only."""
    from reasoning_gym.factory import DATASETS

    for kind, _ in DATASETS.values():
        if "eval" in kind.score_answer.__code__.co_names:
            vars(sys.modules[kind.__module__])["eval"] = ast.literal_eval


class GymVerifier:
    """Verifier of answers to reasoning-gym's problems; ``seconds`` limit the scorer per answer."""

    def __init__(self, seconds: float = 10.0) -> None:
        require()
        self._pool = WorkerPool(time_limit=seconds, warm_up=f"{__name__}:warm_up")

    async def averify(self, response: str, gold: str) -> Verdict:
        """Return the verdict on a response. A scorer that is late or dies leaves it undecided."""
        return _verdict(await asyncio.wrap_future(self._pool.submit(judge, response, gold)))

    def verify_batch(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Return the verdicts on (response, gold) pairs, in their order, with all workers busy."""
        started = [self._pool.submit(judge, response, gold) for response, gold in pairs]
        return [_verdict(future.result()) for future in started]


def _verdict(result: Verdict | Failure) -> Verdict:
    return (
        grader_failed(result.outcome, None, 0.0, result.detail)
        if isinstance(result, Failure)
        else result
    )
