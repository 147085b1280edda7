# SPDX-License-Identifier: Apache-2.0
"""The step scorer of one node, shared by all reward workers on it.

As with the verifiers (:mod:`prime_ext.reward.node_verifiers`): the first reward worker on a node starts one Ray actor
there, with one copy of the model, one micro-batcher and one cache; the others find it by name. Without Ray the scorer
lives in the calling process.
"""

import asyncio
import logging
from dataclasses import replace
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError, RayTaskError

from prime_ext.config.pspo_settings import ActorSettings, BatchingSettings
from prime_ext.config.step_scorer_settings import ScorerSettings
from prime_ext.reward.micro_batcher import MicroBatcher
from prime_ext.reward.node_actor import NodeActor
from prime_ext.step_rm.scorers.build import build_scorer
from prime_ext.step_rm.scorers.protocol import Chain, Outcome, ScoringFailure

logger = logging.getLogger(__name__)

# Responses that one actor has in hand at the same time; more wait in its queue.
MAX_CONCURRENCY = 10_000
# After this a node has no room for the actor, or its model does not load.
START_SECONDS = 600.0


class ResponseScorer(Protocol):
    """Scores one response at a time; calls overlap."""

    async def score(self, chain: Chain, tokens: int) -> Outcome:
        """Its scores, or why there are none."""


class NodeStepScorer:
    """The Ray actor of a node; or, without Ray, the scorer of this process."""

    def __init__(
        self,
        scorer: ScorerSettings,
        batching: BatchingSettings,
        actor: ActorSettings,
        router_address: str | None = None,
    ):
        if scorer.kind == "local":
            if actor.cpu_threads is not None:
                import torch

                torch.set_num_threads(actor.cpu_threads)
            if scorer.device is None and actor.num_gpus == 0:
                # Whatever this process may see of the GPUs belongs to others.
                scorer = replace(scorer, device="cpu")
        scores = build_scorer(scorer, router_address)
        self._batcher = MicroBatcher(scores, batching.window_ms / 1000, batching.max_tokens)

    async def score(self, chain: Chain, tokens: int) -> Outcome:
        return await self._batcher.score(chain, tokens)

    async def ready(self) -> None:
        """Returns when the model is loaded."""


class SharedStepScorer:
    """A client of this node's actor, which it starts when there is none."""

    def __init__(
        self,
        scorer: ScorerSettings,
        batching: BatchingSettings,
        actor: ActorSettings,
        router_address: str | None = None,
    ):
        self._num_gpus = actor.num_gpus
        arguments = (scorer, batching, actor, router_address)
        self._node = NodeActor(NodeStepScorer, arguments, "step_scorer", MAX_CONCURRENCY, actor.num_gpus)
        self._ready: Any = None  # the actor whose model is loaded

    async def _ask(self, actor: Any, chain: Chain, tokens: int) -> Outcome:
        if self._ready is not actor:
            await asyncio.wait_for(_wait_for(actor), START_SECONDS)
            self._ready = actor
        return await actor.score.remote(chain, tokens)

    async def score(self, chain: Chain, tokens: int) -> Outcome:
        """Scores of one response; if the actor died, once more with a new one."""
        try:
            return await self._node.ask(lambda actor: self._ask(actor, chain, tokens))
        except (asyncio.TimeoutError, TimeoutError):
            return ScoringFailure(
                f"the step scorer of this node did not start in {START_SECONDS:g} s: no {self._num_gpus:g} GPUs "
                f"are free (pspo.actor.num_gpus), or its model does not load"
            )
        except (RayTaskError, RayActorError) as error:
            # Ray's messages hold the whole traceback; the cause is their last line.
            lines = [line for line in str(error).splitlines() if line.strip()]
            return ScoringFailure(f"step scorer of this node: {lines[-1] if lines else repr(error)}"[:500])


async def _wait_for(actor: Any) -> None:
    await actor.ready.remote()


def connect(
    scorer: ScorerSettings, batching: BatchingSettings, actor: ActorSettings, router_address: str | None = None
) -> ResponseScorer:
    """The scorer that this process asks: that of the node where Ray runs, its own elsewhere.

    Raises:
        StepRMError: without Ray, a model that cannot work.
    """
    cls = SharedStepScorer if ray.is_initialized() else NodeStepScorer
    return cls(scorer, batching, actor, router_address)
