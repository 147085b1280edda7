# SPDX-License-Identifier: Apache-2.0
"""Collects responses that arrive one by one, so that their steps are scored together.

verl's reward loop asks for one response at a time, many times at once. The first response of a batch waits for a few
milliseconds; what arrives meanwhile goes with it, up to a number of tokens.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.protocol import Chain, Outcome, ScoringFailure, StepScorer

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Request:
    chain: Chain
    tokens: int
    done: "asyncio.Future[Outcome]"


class MicroBatcher:
    """Puts requests together for a scorer of steps. Belongs to one event loop.

    A batch does not wait for the one before it, so a server is asked for several at a time; a local model works on one
    after the other.

    Args:
        scorer: scores lists of responses.
        window_seconds: how long the first response of a batch waits for more.
        max_tokens: tokens of a batch at most; a response with more is a batch of its own.
    """

    def __init__(self, scorer: StepScorer, window_seconds: float, max_tokens: int):
        self._scorer, self._window, self._max_tokens = scorer, window_seconds, max_tokens
        self._waiting: dict[_Request, None] = {}
        self._collected = 0
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def score(self, chain: Chain, tokens: int) -> Outcome:
        """Scores of one response, or why there are none; an error of the scorer is such a reason.

        Args:
            chain: the response.
            tokens: its length, which counts towards the batch.
        """
        loop = asyncio.get_running_loop()
        if self._waiting and self._collected + tokens > self._max_tokens:
            self._send()
        request = _Request(chain, tokens, loop.create_future())
        self._waiting[request] = None
        self._collected += tokens
        if self._collected >= self._max_tokens:
            self._send()
        elif self._timer is None:
            self._timer = loop.call_later(self._window, self._send)
        try:
            return await request.done
        finally:
            # Cancelled before the batch was sent: the others go without this one.
            if request in self._waiting:
                del self._waiting[request]
                self._collected -= tokens

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        requests, self._waiting, self._collected = list(self._waiting), {}, 0
        if requests:
            task = asyncio.get_running_loop().create_task(self._work(requests))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _work(self, requests: Sequence[_Request]) -> None:
        try:
            outcomes = await self._scorer.score([request.chain for request in requests])
            if len(outcomes) != len(requests):
                raise StepRMError(f"the scorer gave {len(outcomes)} results for {len(requests)} responses")
        except Exception as error:
            if len(requests) > 1:
                # The others of the batch must not fail with the one that broke it.
                await asyncio.gather(*(self._work([request]) for request in requests))
                return
            if not isinstance(error, StepRMError):
                logger.exception("the step scorer broke")
            outcomes = [ScoringFailure(f"{type(error).__name__}: {error}")]
        for request, outcome in zip(requests, outcomes, strict=True):
            if not request.done.cancelled():
                request.done.set_result(outcome)

    async def close(self) -> None:
        """Score what has been asked for, and close the scorer."""
        self._send()
        await asyncio.gather(*self._running)
        await self._scorer.close()
