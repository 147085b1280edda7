# SPDX-License-Identifier: Apache-2.0
"""The math verifier: compare the final answer of a response with the gold answer.

Two stages: text equality and rules in the caller (microseconds); for what they leave open,
values at sample points in a killable worker (milliseconds).
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from prime_ext.verifiers.math.answer_comparison import compare, undecided
from prime_ext.verifiers.math.answer_extraction import Extraction, extract
from prime_ext.verifiers.math.notation import MAX_CHARACTERS, list_spellings
from prime_ext.verifiers.math.restatement import restatement
from prime_ext.verifiers.math.structure import read
from prime_ext.verifiers.verdict import Outcome, Verdict
from prime_ext.verifiers.worker_pool import DEFAULT_POOL, Failure, WorkerPool

_Answer = tuple[str, str] | Failure
_SCORES = {Outcome.CORRECT: 1.0, Outcome.WRONG: 0.0, Outcome.NO_ANSWER: 0.0}


def _judge(gold: str, answer: str) -> tuple[str, str]:
    # Imported in the worker: mpmath never enters the caller.
    from prime_ext.verifiers.math.evaluation import judge

    return judge(gold, answer)


def decide(gold: str, answer: str) -> tuple[str, str]:
    """Compare one prediction with one gold answer by rules alone.

    Returns:
        ``correct``, ``wrong``, ``error`` (the gold answer is unusable) or ``open`` (values at
        sample points must decide), and the rule.
    """
    gold = gold.strip()
    answer = answer.strip()
    if not gold:
        return "error", "the gold answer is empty"
    if gold == answer:
        return "correct", "same text"
    if len(gold) > MAX_CHARACTERS:
        return "error", f"the gold answer has {len(gold)} characters"
    if len(answer) > MAX_CHARACTERS:
        return "wrong", f"too complex: {len(answer)} characters"
    results = []
    for gold_spelling, spelling in list_spellings(gold, answer):
        results.append(compare(read(gold_spelling), read(spelling), undecided))
        if results[-1]:
            return "correct", "equal by rules"
    if None in results:
        return "open", "left to sample points"
    return "wrong", "different by rules"


class MathVerifier:
    """Verifier of final answers. Safe from any thread, from asyncio and inside Ray actors.

    Args:
        pool: the workers; None: those that all verifiers in this process share.
        time_limit: seconds of computer algebra per answer.
    """

    def __init__(self, pool: WorkerPool | None = None, *, time_limit: float | None = None) -> None:
        self._pool = pool or DEFAULT_POOL
        self._time_limit = time_limit

    def verify(self, response: str, gold: str, **options: Any) -> Verdict:
        """Return the verdict on a response, any text, of which nothing is executed.

        Args:
            response: the response.
            gold: the gold answer.
            extraction: a style of ``extraction.py`` (default: boxed); None: the response is the
                answer.
            prompt: an unevaluated expression out of it is not an answer (``restatement.py``).

        Raises:
            ValueError: no such style.
        """
        return self._start(response, gold, **options).result()

    def verify_answer(self, answer: str, gold: str) -> Verdict:
        """Return the verdict on an answer that is already extracted."""
        return self.verify(answer, gold, extraction=None)

    async def averify(self, response: str, gold: str, **options: Any) -> Verdict:
        """Judge as :meth:`verify` does, without blocking the event loop."""
        return await asyncio.wrap_future(self._start(response, gold, **options))

    def verify_batch(
        self, pairs: Sequence[tuple[str, str]], *, extraction: str = "boxed"
    ) -> list[Verdict]:
        """Return the verdicts on (response, gold) pairs, in their order, with all workers busy."""
        return [future.result() for future in [self._start(*pair, extraction) for pair in pairs]]

    def _start(
        self, text: str, gold: str, extraction: str | None = "boxed", prompt: str | None = None
    ) -> "Future[Verdict]":
        """Decide by rules or a worker; an answer that fails there is too complex if 0 does not."""
        started = time.perf_counter()
        decided = Future[Verdict]()
        extracted = extract(text, extraction) if extraction is not None else Extraction(text, "")
        answer = extracted.answer

        def settle(outcome: str, reason: str) -> None:
            if not decided.set_running_or_notify_cancel():
                return
            try:
                if outcome == "correct" and prompt is not None and reason != "same text":
                    restated = restatement(answer or "", gold, prompt)
                    if restated is not None:
                        outcome = "wrong"
                        reason = f"restates the problem: {restated.replace(' ', '')[:60]}"
                score = _SCORES.get(Outcome(outcome))
                seconds = time.perf_counter() - started
                verdict = Verdict(Outcome(outcome), score, answer, seconds, reason, score is None)
                decided.set_result(verdict)
            except Exception as error:
                decided.set_exception(error)

        def ask(candidate: str, then: Callable[[_Answer], None]) -> None:
            future = self._pool.submit(_judge, gold, candidate, time_limit=self._time_limit)
            decided.add_done_callback(lambda _: future.cancel())
            future.add_done_callback(lambda done: None if done.cancelled() else then(done.result()))

        def settle_or_blame(result: _Answer) -> None:
            if isinstance(result, tuple):
                return settle(*result)
            failed = (result.outcome, result.detail)
            too_complex = ("wrong", f"too complex: {result.detail}")
            ask("0", lambda of_gold: settle(*(too_complex if type(of_gold) is tuple else failed)))

        if answer is None:
            settle("no_answer", extracted.rule)
            return decided
        outcome, reason = decide(gold, answer)
        if outcome == "open":
            ask(answer, settle_or_blame)
        else:
            settle(outcome, reason)
        return decided
