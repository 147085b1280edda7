# SPDX-License-Identifier: Apache-2.0
"""The verifiers of one node, shared by all reward workers on it.

verl starts several reward workers per node, each a process of its own. If each had its own grader processes, the cores
would be oversubscribed as often. So the first worker on a node starts one Ray actor there, which owns the grader
processes and the sandbox; the others find it by name. Without Ray (data preprocessing, evaluation) the verifiers live
in the calling process.
"""

import importlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ray.exceptions import RayActorError, RayTaskError

from prime_ext.reward.node_actor import NodeActor
from prime_ext.verifiers.sources import TaskVerifier, make_task_verifier
from prime_ext.verifiers.verdict import Outcome, Verdict, grader_failed

logger = logging.getLogger(__name__)

# Settings of the verifiers by task: what their factories in prime_ext.verifiers.sources take.
Settings = Mapping[str, Mapping[str, Any]]

# Requests that one actor works on at the same time; more wait in its queue.
MAX_CONCURRENCY = 1000


def import_modules(modules: Sequence[str]) -> None:
    """Import the user's modules, which register sources and tasks."""
    for module in modules:
        importlib.import_module(module)


class LocalVerifiers:
    """The verifiers of this process, made when a task is first needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._verifiers: dict[str, TaskVerifier] = {}

    async def verify(self, task: str, response: str, gold: Any, options: Mapping[str, Any]) -> Verdict:
        """Judge one response. An exception of the verifier is a verdict too: the grader failed."""
        start = time.perf_counter()
        try:
            if task not in self._verifiers:
                self._verifiers[task] = make_task_verifier(task, self._settings.get(task))
            return await self._verifiers[task].averify(response, gold, **options)
        except Exception as error:
            logger.exception("the verifier of task %s broke", task)
            detail = f"{type(error).__name__}: {error}"[:500]
            return grader_failed(Outcome.ERROR, None, time.perf_counter() - start, detail)


class NodeVerifiers:
    """The Ray actor of a node."""

    def __init__(self, modules: Sequence[str], settings: Settings):
        import_modules(modules)
        self._local = LocalVerifiers(settings)

    async def verify(self, task: str, response: str, gold: Any, options: Mapping[str, Any]) -> Verdict:
        return await self._local.verify(task, response, gold, options)


class SharedVerifiers:
    """A client of this node's actor, which it starts when there is none."""

    def __init__(self, modules: Sequence[str], settings: Settings):
        self._node = NodeActor(NodeVerifiers, (tuple(modules), settings), "verifiers", MAX_CONCURRENCY)

    async def verify(self, task: str, response: str, gold: Any, options: Mapping[str, Any]) -> Verdict:
        """Judge one response; if the actor died, once more with a new one."""
        start = time.perf_counter()
        try:
            return await self._node.ask(lambda actor: actor.verify.remote(task, response, gold, dict(options)))
        except (RayTaskError, RayActorError) as error:
            detail = f"verifiers of this node: {error}"[:500]
            return grader_failed(Outcome.ERROR, None, time.perf_counter() - start, detail)
