# SPDX-License-Identifier: Apache-2.0
"""The step scorer of a node's reward workers, in a Ray actor (:mod:`prime_ext.reward.node_actor`) or this process."""

import asyncio
import bisect
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from prime_ext.config.step_scorer_settings import ScorerSettings
from prime_ext.reward.node_actor import NodeActor
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.build import build_scorer
from prime_ext.step_rm.scorers.protocol import Chain, Outcome, ScoringFailure, StepScorer

logger = logging.getLogger(__name__)

# Seconds that the first response of a batch waits for more, and most tokens of a batch.
WINDOW_SECONDS = 0.005
BATCH_TOKENS = 16384
# Responses that an actor accepts at the same time; more wait in its queue.
MAX_CONCURRENCY = 10_000
# After this a node has no room for the actor, or its model does not load.
START_SECONDS = 600.0


@dataclass(eq=False)
class _Request:
    chain: Chain
    tokens: int
    done: "asyncio.Future[Outcome]"


class MicroBatcher:
    """Collects responses that arrive one by one, so that their steps are scored together. Belongs to one event loop.

    The first response of a batch waits ``window_seconds`` for more; one longer than ``max_tokens`` is a batch of its
    own. With ``one_at_a_time``, for a model in this process, a batch waits for the one before it and grows meanwhile.
    """

    def __init__(self, scorer: StepScorer, window_seconds: float, max_tokens: int, one_at_a_time: bool = False):
        self._scorer, self._window, self._max_tokens = scorer, window_seconds, max_tokens
        self._one_at_a_time = one_at_a_time
        self._waiting: dict[_Request, None] = {}
        self._collected = 0
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def score(self, chain: Chain, tokens: int) -> Outcome:
        """Return the scores of one response of ``tokens`` tokens, or why there are none."""
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
            # If it was cancelled before the batch was sent.
            self._forget(request)

    def _forget(self, request: _Request) -> None:
        if request in self._waiting:
            del self._waiting[request]
            self._collected -= request.tokens

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting or (self._one_at_a_time and self._running):
            return
        tokens = list(itertools.accumulate(request.tokens for request in self._waiting))
        batch = list(self._waiting)[: max(1, bisect.bisect_right(tokens, self._max_tokens))]
        for request in batch:
            self._forget(request)
        task = asyncio.get_running_loop().create_task(self._work(batch))
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if self._one_at_a_time:
            self._send()

    async def _work(self, requests: Sequence[_Request]) -> None:
        try:
            outcomes = await self._scorer.score([request.chain for request in requests])
            if len(outcomes) != len(requests):
                raise StepRMError(f"the scorer gave {len(outcomes)} results for {len(requests)} responses")
        except Exception as error:
            if len(requests) > 1:
                # Find the one that broke the batch.
                await asyncio.gather(*(self._work([request]) for request in requests))
                return
            if not isinstance(error, StepRMError):
                logger.exception("the step scorer broke")
            outcomes = [ScoringFailure(f"{type(error).__name__}: {error}")]
        for request, outcome in zip(requests, outcomes, strict=True):
            if not request.done.cancelled():
                request.done.set_result(outcome)


class NodeStepScorer:
    """The scorer in the Ray actor of a node or in this process."""

    def __init__(self, scorer: ScorerSettings, router_address: str | None = None):
        if scorer.kind == "local":
            actor = scorer.actor
            if actor.cpu_threads is not None:
                import torch

                torch.set_num_threads(actor.cpu_threads)
            if actor.num_gpus == 0 and scorer.device is None:
                # The GPUs that this process sees belong to others.
                scorer = replace(scorer, device="cpu")
        scores = build_scorer(scorer, router_address)
        self._batcher = MicroBatcher(scores, WINDOW_SECONDS, BATCH_TOKENS, one_at_a_time=scorer.kind == "local")

    async def score(self, chain: Chain, tokens: int) -> Outcome:
        return await self._batcher.score(chain, tokens)

    async def ready(self) -> None:
        """Return when the model is loaded."""


class SharedStepScorer:
    """Client of this node's actor."""

    def __init__(self, scorer: ScorerSettings, router_address: str | None = None):
        self._num_gpus = scorer.actor.num_gpus
        options = {"max_concurrency": MAX_CONCURRENCY, "num_gpus": self._num_gpus}
        self._node = NodeActor("step_scorer", NodeStepScorer, scorer, router_address, **options)
        self._ready: Any = None  # the actor whose model is loaded

    async def _ask(self, actor: Any, chain: Chain, tokens: int) -> Outcome:
        if self._ready is not actor:
            await asyncio.wait_for(actor.ready.remote(), START_SECONDS)
            self._ready = actor
        return await actor.score.remote(chain, tokens)

    async def score(self, chain: Chain, tokens: int) -> Outcome:
        try:
            return await self._node.ask(lambda actor: self._ask(actor, chain, tokens))
        except (asyncio.TimeoutError, TimeoutError):
            return ScoringFailure(
                f"the step scorer of this node did not start in {START_SECONDS:g} s: no {self._num_gpus:g} GPUs "
                f"are free (step_scorer.actor.num_gpus), or its model does not load"
            )
        except (RayTaskError, RayActorError) as error:
            # Ray's messages hold the whole traceback; the cause is their last line.
            lines = [line for line in str(error).splitlines() if line.strip()]
            return ScoringFailure(f"step scorer of this node: {lines[-1] if lines else repr(error)}"[:500])


NodeScorer = NodeStepScorer | SharedStepScorer


def connect(scorer: ScorerSettings, router_address: str | None = None) -> NodeScorer:
    """Return the scorer of the node, or one of this process without Ray. ``StepRMError``: that one cannot work."""
    return (SharedStepScorer if ray.is_initialized() else NodeStepScorer)(scorer, router_address)
