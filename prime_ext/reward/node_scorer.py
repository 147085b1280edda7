# SPDX-License-Identifier: Apache-2.0
"""The step scorer of a node's reward workers, in a Ray actor (``node_actor``) or this process."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from prime_ext.config.step_scorer_settings import RemoteSettings, ScorerSettings
from prime_ext.reward.node_actor import NodeActor
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.build import build_scorer
from prime_ext.step_rm.scorers.protocol import Chain, Outcome, ScoringFailure, StepScorer

logger = logging.getLogger(__name__)

# Responses that an actor accepts at the same time; more wait in its queue.
MAX_CONCURRENCY = 10_000


class Gatherer:
    """Scorer of one event loop that scores together all responses that arrived during a call."""

    def __init__(self, scorer: StepScorer):
        self._scorer = scorer
        self._waiting: list[tuple[Chain, asyncio.Future[Outcome]]] = []
        self._runner: asyncio.Task[None] | None = None

    async def score(self, chain: Chain) -> Outcome:
        """Return the scores of one response, or why there are none."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Outcome] = loop.create_future()
        self._waiting.append((chain, done))
        if self._runner is None:
            self._runner = loop.create_task(self._run())
        return await done

    async def _run(self) -> None:
        while self._waiting:
            # Canceled callers do not wait any more.
            batch = [(chain, done) for chain, done in self._waiting if not done.done()]
            self._waiting = []
            outcomes = await score_each(self._scorer, [chain for chain, _ in batch])
            for (_, done), outcome in zip(batch, outcomes, strict=True):
                if not done.done():
                    done.set_result(outcome)
        self._runner = None


async def score_each(scorer: StepScorer, chains: Sequence[Chain]) -> list[Outcome]:
    """Score responses together; if that fails, one by one, so that all others keep their scores."""
    try:
        outcomes = list(await scorer.score(chains))
        if len(outcomes) != len(chains):
            raise StepRMError(
                f"the scorer gave {len(outcomes)} results for {len(chains)} responses"
            )
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
        if not isinstance(scorer, RemoteSettings):
            actor = scorer.actor
            if actor.cpu_threads is not None:
                import torch

                torch.set_num_threads(actor.cpu_threads)
            if actor.num_gpus == 0 and scorer.device is None:
                # The GPUs that this process sees belong to others.
                scorer = replace(scorer, device="cpu")
        self._scorer = build_scorer(scorer, router_address)
        # A server forms batches itself.
        self._gatherer = None if isinstance(scorer, RemoteSettings) else Gatherer(self._scorer)

    async def score(self, chain: Chain) -> Outcome:
        if self._gatherer is not None:
            return await self._gatherer.score(chain)
        (outcome,) = await score_each(self._scorer, [chain])
        return outcome


def connect(scorer: ScorerSettings, router_address: str | None = None) -> NodeActor:
    """Return the scorer of the node, or one of this process without Ray.

    Raises StepRMError: that one cannot work.
    """
    gpus = 0.0 if isinstance(scorer, RemoteSettings) else scorer.actor.num_gpus
    options = {"max_concurrency": MAX_CONCURRENCY, "num_gpus": gpus}
    return NodeActor("step_scorer", NodeStepScorer, scorer, router_address, **options)
