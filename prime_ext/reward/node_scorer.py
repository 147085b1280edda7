# SPDX-License-Identifier: Apache-2.0
"""The step scorer of a node's reward workers, in a Ray actor (:mod:`prime_ext.reward.node_actor`) or this process."""

import asyncio
import bisect
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prime_ext.config.step_scorer_settings import ScorerSettings, ServerSettings
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


@dataclass(eq=False)
class _Request:
    chain: Chain
    tokens: int
    done: "asyncio.Future[Outcome]"


class MicroBatcher:
    """Scores responses that arrive one by one together; while it scores a batch, the next one collects.

    The first response of a batch waits ``window_seconds`` for more; one longer than ``max_tokens`` is a batch of its
    own. Belongs to one event loop.
    """

    def __init__(self, scorer: StepScorer, window_seconds: float, max_tokens: int):
        self._scorer, self._window, self._max_tokens = scorer, window_seconds, max_tokens
        self._waiting: list[_Request] = []
        self._runner: asyncio.Task[None] | None = None

    async def score(self, chain: Chain, tokens: int) -> Outcome:
        """Return the scores of one response of ``tokens`` tokens, or why there are none."""
        loop = asyncio.get_running_loop()
        request = _Request(chain, tokens, loop.create_future())
        self._waiting.append(request)
        if self._runner is None:
            self._runner = loop.create_task(self._run())
        return await request.done

    async def _run(self) -> None:
        await asyncio.sleep(self._window)
        # Those who were cancelled do not wait any more.
        while waiting := [request for request in self._waiting if not request.done.done()]:
            tokens = itertools.accumulate(request.tokens for request in waiting)
            fitting = max(1, bisect.bisect_right(list(tokens), self._max_tokens))
            batch, self._waiting = waiting[:fitting], waiting[fitting:]
            outcomes = await score_each(self._scorer, [request.chain for request in batch])
            for request, outcome in zip(batch, outcomes, strict=True):
                if not request.done.done():
                    request.done.set_result(outcome)
        self._waiting, self._runner = [], None


async def score_each(scorer: StepScorer, chains: Sequence[Chain]) -> list[Outcome]:
    """Score responses; if that fails, one by one, so that only those that fail alone have no scores."""
    try:
        outcomes = list(await scorer.score(chains))
        if len(outcomes) != len(chains):
            raise StepRMError(f"the scorer gave {len(outcomes)} results for {len(chains)} responses")
        return outcomes
    except Exception as error:
        if len(chains) > 1:
            return [outcome for chain in chains for outcome in await score_each(scorer, [chain])]
        if not isinstance(error, StepRMError):
            logger.exception("the step scorer broke")
        return [ScoringFailure(f"{type(error).__name__}: {error}")]


class NodeStepScorer:
    """The scorer in the Ray actor of a node or in this process."""

    def __init__(self, scorer: ScorerSettings, router_address: str | None = None):
        if not isinstance(scorer, ServerSettings):
            actor = scorer.actor
            if actor.cpu_threads is not None:
                import torch

                torch.set_num_threads(actor.cpu_threads)
            if actor.num_gpus == 0 and scorer.device is None:
                # The GPUs that this process sees belong to others.
                scorer = replace(scorer, device="cpu")
        self._scorer = build_scorer(scorer, router_address)
        # A server forms batches itself.
        local = not isinstance(scorer, ServerSettings)
        self._batcher = MicroBatcher(self._scorer, WINDOW_SECONDS, BATCH_TOKENS) if local else None

    async def score(self, chain: Chain, tokens: int) -> Outcome:
        if self._batcher is not None:
            return await self._batcher.score(chain, tokens)
        (outcome,) = await score_each(self._scorer, [chain])
        return outcome


def connect(scorer: ScorerSettings, router_address: str | None = None) -> NodeActor:
    """Return the scorer of the node, or one of this process without Ray. ``StepRMError``: that one cannot work."""
    options = {
        "max_concurrency": MAX_CONCURRENCY,
        "num_gpus": 0.0 if isinstance(scorer, ServerSettings) else scorer.actor.num_gpus,
    }
    return NodeActor("step_scorer", NodeStepScorer, scorer, router_address, **options)
