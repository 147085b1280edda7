# SPDX-License-Identifier: Apache-2.0
"""Verdicts of verifiers in this process, many at the same time, for programs without Ray."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from prime_ext.utils.run_store import RunError
from prime_ext.verifiers.sandbox.client import SandboxUnavailable
from prime_ext.verifiers.sources import TASKS, TaskVerifier, ask_verifier, make_task_verifier
from prime_ext.verifiers.verdict import Outcome, Verdict, grader_failed

CONCURRENCY = 64


@cache
def _make_verifier(task: str, factory: Callable[..., TaskVerifier] | None) -> TaskVerifier:
    # A task that is registered again has another factory.
    return make_task_verifier(task)


def make_verifier(task: str) -> TaskVerifier:
    """Return the verifier of a task in this process.

    Raises ``RunError``: there is no sandbox for programs; ``UnknownSource``: there is no such task.
    """
    try:
        return _make_verifier(task, TASKS.get(task))
    except SandboxUnavailable as error:
        reason = " ".join(str(error).split())
        raise RunError(f"programs cannot be judged on this machine: {reason}") from error


class Query(NamedTuple):
    """A response to judge by a gold answer, and the verifier's options for it."""

    verifier: TaskVerifier
    response: str
    gold: str
    options: Mapping[str, Any]


async def judge_response(query: Query) -> Verdict:
    """Return the verdict on a response; an exception of the verifier is a failure of the grader."""
    started = time.perf_counter()
    try:
        return await ask_verifier(*query)
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"[:500]
        return grader_failed(Outcome.ERROR, None, time.perf_counter() - started, detail)


def judge_all(
    queries: Sequence[Query], keep: Callable[[int, Verdict], None] | None = None
) -> list[Verdict]:
    """Return the verdicts in order, :data:`CONCURRENCY` at a time.

    ``keep`` gets the number of a query, from 0, and its verdict, as soon as that is there.
    """
    verdicts: dict[int, Verdict] = {}
    waiting = iter(enumerate(queries))

    async def judge_next() -> None:
        for number, query in waiting:
            verdicts[number] = await judge_response(query)
            if keep is not None:
                keep(number, verdicts[number])

    async def judge() -> None:
        await asyncio.gather(*(judge_next() for _ in range(min(CONCURRENCY, len(queries)))))

    asyncio.run(judge())
    return [verdicts[number] for number in range(len(queries))]
