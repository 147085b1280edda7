# SPDX-License-Identifier: Apache-2.0
"""Answers to problems of reasoning-gym, scored by their task in a killable worker.

A gold answer is a Python literal: ``task``, its ``parameters``, ``answer``, ``metadata``. Some
scorers call ``eval`` or sympy's parser, which evaluates Python, on an answer: in the workers the
first reads literals, the second formulas only.
"""

import ast
import asyncio
import functools
import re
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from prime_ext.utils.rows import SourceError
from prime_ext.verifiers.math.answer_extraction import extract
from prime_ext.verifiers.math.complexity_limits import refusal
from prime_ext.verifiers.verdict import Verdict, correct, grader_failed, no_answer, wrong
from prime_ext.verifiers.worker_pool import Failure, WorkerPool

# Parameters of every task that are not the library's.
OF_VERIFIER = ("threshold", "extraction")
_FUNCTIONS = {
    *"pi sqrt exp log ln Abs sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh".split()
}
# Other characters, a call of a letter, or a tower of powers.
_NO_FORMULA = re.compile(r"[^\w\s.,+\-*/^()]|\b[a-zA-Z]\s*\(|\*\*\s*[+-]?\s*[\w.]+\s*\*\*")


def require() -> None:
    """Raise ``SourceError``: the library is not installed."""
    if find_spec("reasoning_gym") is None:
        raise SourceError("reasoning-gym is not installed: pip install -e '.[reasoning-gym]'")


def make_dataset(task: str, parameters: str, seed: int = 0, size: int = 1) -> Any:
    """Return a task's data set; ``parameters`` is a literal. Raises whatever the library raises."""
    from reasoning_gym.factory import create_dataset

    own = {
        key: value for key, value in ast.literal_eval(parameters).items() if key not in OF_VERIFIER
    }
    return create_dataset(task, seed=seed, size=size, **own)


# For scores only, as drawing a problem may change a data set.
_scorer = functools.lru_cache(maxsize=64)(make_dataset)


def read_problem(gold: str) -> dict[str, Any]:
    """Read a gold answer. ``ValueError``: it is not a problem of reasoning-gym."""
    try:
        problem = ast.literal_eval(gold)
        return {key: problem[key] for key in ("task", "parameters", "answer", "metadata")}
    except (SyntaxError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"the gold answer is not a problem of reasoning-gym: {gold[:60]!r}"
        ) from error


def is_formula(text: str) -> bool:
    """Return whether sympy may parse a text: a small formula with letters, elementary functions."""
    words = {*re.findall(r"[^\W\d]\w+", text)} - _FUNCTIONS
    return not (words or _NO_FORMULA.search(text) or refusal(text.replace("**", "^")))


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
    dataset = _scorer(problem["task"], repr(problem["parameters"]))
    if not may_read(extraction.answer, dataset):
        return wrong(
            extraction.answer, time.perf_counter() - started, "not a formula, or too complex"
        )
    try:
        score = dataset.score_answer(extraction.answer, problem)
    except Exception as error:
        # It can score the gold answer (data preparation checks that), so this answer is unreadable.
        detail = f"{problem['task']} cannot read it: {type(error).__name__}: {error}"
        return wrong(extraction.answer, time.perf_counter() - started, detail)
    verdict = correct if score >= problem["parameters"]["threshold"] else wrong
    return verdict(
        extraction.answer, time.perf_counter() - started, f"{problem['task']} scores {score:.4g}"
    )


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


def _verdict(said: Verdict | Failure) -> Verdict:
    return (
        grader_failed(said.outcome, None, 0.0, said.detail) if isinstance(said, Failure) else said
    )
