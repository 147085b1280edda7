# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The math verifier: is the final answer of a response the gold answer?

Three stages, each only for what the one before left open: text equality and rules in the caller (microseconds), the
gate, computer algebra in a worker process that can be killed (milliseconds). The verdict does not depend on the number
of workers or on what was verified before.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from prime_ext.verifiers.math.compare import compare, undecided, within
from prime_ext.verifiers.math.extraction import STYLES, extract
from prime_ext.verifiers.math.gate import MAX_CHARACTERS, refusal
from prime_ext.verifiers.math.normalize import normalize, readings
from prime_ext.verifiers.math.numbers import read_number
from prime_ext.verifiers.math.restatement import restatement
from prime_ext.verifiers.math.structure import Leaf, Node, read_answer
from prime_ext.verifiers.verdict import Outcome, Verdict, correct, grader_failed, no_answer, wrong
from prime_ext.verifiers.worker_pool import Failure, WorkerPool, default_pool

Gold = str | Sequence[str]
_JUDGE = "prime_ext.verifiers.math.symbolic"


@dataclass
class _Case:
    """One answer on its way to a verdict."""

    started: float
    golds: tuple[str, ...]
    answer: str | None
    prompt: str | None = None
    verdict: Verdict | None = None
    future: "Future[object] | None" = None


def _judge(golds: tuple[str, ...], answer: str) -> tuple[str, str]:
    # Imported in the worker: sympy never enters the caller.
    from prime_ext.verifiers.math.symbolic import judge

    return judge(golds, answer)


def read_tolerance(text: str | None) -> Fraction | None:
    """A tolerance as benchmarks write it, ``1e-1`` or ``0.1``.

    Raises:
        ValueError: it is no positive number.
    """
    if text is None:
        return None
    number = read_number(normalize(text))
    if number is None or number.value <= 0:
        raise ValueError(f"tolerance must be a positive number, got {text!r}")
    return number.value


def decide(gold: str, answer: str, tolerance: Fraction | None = None) -> tuple[str, str]:
    """Compare one prediction with one gold answer by rules alone.

    Args:
        gold: the gold answer.
        answer: the prediction.
        tolerance: how far a plain number may be from a gold answer that is one.

    Returns:
        ``correct``, ``wrong``, ``error`` (the gold answer is unusable) or ``open`` (algebra must decide), and the rule.
    """
    gold, answer = gold.strip(), answer.strip()
    if not gold:
        return "error", "the gold answer is empty"
    if gold == answer:
        return "correct", "same text"
    if len(answer) > 4 * MAX_CHARACTERS:
        return "wrong", f"gate: an answer of {len(answer)} characters"
    found: bool | None = False
    for number, (wanted, given) in enumerate(readings(gold, answer)):
        if not given:
            return "wrong", "an empty answer"
        if wanted == given:
            return "correct", "same text after normalisation"
        left, right = read_number(wanted), read_number(given)
        if left is not None and right is not None:
            nodes: tuple[Node, Node] = Leaf(wanted, left), Leaf(given, right)
        else:
            if number == 0 and (refused := refusal(given)) is not None:
                return "wrong", f"gate: {refused}"
            if number == 0 and (refused := refusal(wanted)) is not None:
                return "error", f"the gold answer is beyond the gate: {refused}"
            nodes = read_answer(wanted), read_answer(given)
        equal = compare(*nodes, undecided)
        if not equal and tolerance is not None and within(*nodes, tolerance):
            return "correct", "within the tolerance"
        if equal:
            return "correct", "equal numbers" if left is not None and right is not None else "equal by rules"
        found = None if equal is None else found
    return ("open", "left to algebra") if found is None else ("wrong", "different by rules")


class MathVerifier:
    """Verifies final answers. Safe from any thread, from asyncio and inside Ray actors.

    Args:
        pool: the workers; by default those that all verifiers in this process share.
        time_limit: seconds of computer algebra per answer, counted from its start in the worker.
    """

    def __init__(self, pool: WorkerPool | None = None, *, time_limit: float | None = None) -> None:
        self._pool = pool
        self._time_limit = time_limit

    def verify(
        self,
        response: str,
        gold: Gold,
        *,
        extraction: str = "boxed",
        tolerance: str | None = None,
        prompt: str | None = None,
    ) -> Verdict:
        """Return the verdict on a response.

        Args:
            response: the text that the policy wrote. Any text; nothing in it is executed.
            gold: the gold answer, or several of which any may be matched.
            extraction: how to find the answer; a style of :mod:`prime_ext.verifiers.math.extraction`.
            tolerance: how far a plain number may be from a gold answer that is one, e.g. ``1e-1``. Other answers are
                exact.
            prompt: what was asked. If it is given, an unevaluated expression out of it is no answer
                (:mod:`prime_ext.verifiers.math.restatement`).

        Raises:
            ValueError: no such style, no gold answer at all, or a tolerance that is no positive number.
        """
        return self._wait(self._start(response, gold, extraction, tolerance, prompt))

    def verify_answer(self, answer: str, gold: Gold) -> Verdict:
        """Return the verdict on an answer that is already extracted."""
        return self._wait(self._start_answer(time.perf_counter(), answer, gold))

    async def averify(self, response: str, gold: Gold, **options: Any) -> Verdict:
        """Like :meth:`verify` for asyncio. The loop goes on while workers compute; no thread waits."""
        return await self._await(self._start(response, gold, **options))

    async def averify_answer(self, answer: str, gold: Gold) -> Verdict:
        """Like :meth:`verify_answer` for asyncio."""
        return await self._await(self._start_answer(time.perf_counter(), answer, gold))

    def verify_batch(self, pairs: Sequence[tuple[str, Gold]], *, extraction: str = "boxed") -> list[Verdict]:
        """Return the verdicts on (response, gold) pairs, in their order, with all workers busy."""
        return [self._wait(case) for case in [self._start(*pair, extraction) for pair in pairs]]

    def _start(
        self,
        response: str,
        gold: Gold,
        extraction: str = "boxed",
        tolerance: str | None = None,
        prompt: str | None = None,
    ) -> _Case:
        started = time.perf_counter()
        found = extract(response, extraction)
        if found.answer is None:
            return _Case(started, (), None, verdict=no_answer(time.perf_counter() - started, found.rule))
        return self._start_answer(started, found.answer, gold, read_tolerance(tolerance), prompt)

    def _start_answer(
        self,
        started: float,
        answer: str,
        gold: Gold,
        tolerance: Fraction | None = None,
        prompt: str | None = None,
    ) -> _Case:
        golds = (gold,) if isinstance(gold, str) else tuple(gold)
        if not golds:
            raise ValueError("at least one gold answer is needed, got none")
        case = _Case(started, golds, answer, prompt)
        failure, detail, undecided_golds = "", "", []
        for one in golds:
            outcome, rule = decide(one, answer, tolerance)
            if outcome == "correct":
                case.verdict = _right(case, rule)
                return case
            if outcome == "error":
                failure = failure or rule
            elif outcome == "open":
                undecided_golds.append(one)
            else:
                detail = rule
        if undecided_golds:
            pool = self._pool or default_pool()
            case.future = pool.submit(_judge, tuple(undecided_golds), answer, time_limit=self._time_limit)
        elif failure:
            case.verdict = grader_failed(Outcome.ERROR, answer, time.perf_counter() - started, failure)
        else:
            case.verdict = wrong(answer, time.perf_counter() - started, detail)
        return case

    async def _await(self, case: _Case) -> Verdict:
        if case.future is not None:
            _settle(case, await asyncio.wrap_future(case.future))
        assert case.verdict is not None
        return case.verdict

    def _wait(self, case: _Case) -> Verdict:
        if case.future is not None:
            _settle(case, case.future.result())
        assert case.verdict is not None
        return case.verdict


def _settle(case: _Case, result: object) -> None:
    """Turn what a worker said into the verdict."""
    seconds = time.perf_counter() - case.started
    if isinstance(result, Failure):
        case.verdict = grader_failed(result.outcome, case.answer, seconds, result.detail)
        return
    assert isinstance(result, tuple)
    outcome, reason = result
    if outcome == "correct":
        case.verdict = _right(case, reason)
    elif outcome == "wrong":
        case.verdict = wrong(case.answer, seconds, reason)
    else:
        case.verdict = grader_failed(Outcome.ERROR, case.answer, seconds, reason)


def _right(case: _Case, rule: str) -> Verdict:
    """The verdict on an answer that equals a gold answer."""
    seconds = time.perf_counter() - case.started
    if case.prompt is not None and case.answer is not None and not rule.startswith("same text"):
        restated = restatement(case.answer, case.golds, case.prompt)
        if restated is not None:
            return wrong(case.answer, seconds, f"restates the problem: {restated[:60]}")
    return correct(case.answer, seconds, rule)


__all__ = ["STYLES", "MathVerifier", "decide", "read_tolerance"]
