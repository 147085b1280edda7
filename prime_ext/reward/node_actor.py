# SPDX-License-Identifier: Apache-2.0
"""A Ray actor for all reward workers of a node: found by name, started by the first, replaced when it dies."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

logger = logging.getLogger(__name__)

T = TypeVar("T")


class NodeActor:
    """Client of this node's actor ``name``, which is ``cls(*arguments)``; ``options`` are those of Ray."""

    def __init__(self, name: str, cls: type, *arguments: Any, **options: Any):
        self._name, self._cls, self._arguments, self._options = name, cls, arguments, options
        self._actor: Any = None

    def handle(self) -> Any:
        if self._actor is None:
            node = ray.get_runtime_context().get_node_id()
            options = {
                "name": f"prime_ext_{self._name}_{node}",
                "get_if_exists": True,
                "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
                "num_cpus": 0,
                **self._options,
            }
            self._actor = ray.remote(self._cls).options(**options).remote(*self._arguments)
        return self._actor

    async def ask(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """Return ``call(actor)``; if the actor died, that of a new one. ``RayActorError``: the new one died too."""
        actor = self.handle()
        try:
            return await call(actor)
        except RayTaskError:
            raise
        except RayActorError as error:
            # Another request may have replaced it already.
            if self._actor is actor:
                logger.warning("the %s of this node died: %s", self._name.replace("_", " "), error)
                self._actor = None
        await asyncio.sleep(0.5)
        return await call(self.handle())
