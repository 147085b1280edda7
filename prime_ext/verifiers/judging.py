# SPDX-License-Identifier: Apache-2.0
"""Verdicts of verifiers in this process, many at the same time, for programs without Ray."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from prime_ext.utils.run_store import RunError
from prime_ext.verifiers.sandbox.client import SandboxUnavailable
from prime_ext.verifiers.sources import TASKS, TaskVerifier, ask_verifier, make_task_verifier
from prime_ext.verifiers.verdict import Outcome, Verdict, grader_failed

CONCURRENCY = 64
Item = TypeVar("Item")


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


async def judge_response(
    verifier: TaskVerifier, response: str, gold: str, options: Mapping[str, Any]
) -> Verdict:
    """Return the verdict on a response; an exception of the verifier is a failure of the grader."""
    started = time.perf_counter()
    try:
        return await ask_verifier(verifier, response, gold, options)
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"[:500]
        return grader_failed(Outcome.ERROR, None, time.perf_counter() - started, detail)


def run_concurrently(work: Callable[[Item], Awaitable[None]], items: Sequence[Item]) -> None:
    """Await ``work`` on all items, :data:`CONCURRENCY` at a time, and begin them in order."""
    waiting = iter(items)

    async def work_on_next() -> None:
        for item in waiting:
            await work(item)

    async def work_on_all() -> None:
        await asyncio.gather(*(work_on_next() for _ in range(min(CONCURRENCY, len(items)))))

    asyncio.run(work_on_all())
