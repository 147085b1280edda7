# SPDX-License-Identifier: Apache-2.0
"""Ray actor of a node's reward workers: found by name, started by the first, replaced if dead."""

import asyncio
import logging
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

logger = logging.getLogger(__name__)

# After this a node has no room for the actor, or its model does not load.
START_SECONDS = 600.0


class NodeFailure(Exception):
    """The actor did not start, failed at a request, or died twice; the message is one line."""


class NodeActor:
    """``cls(*arguments)`` in a node's actor ``name`` (Ray's ``options``) or in this process."""

    def __init__(self, name: str, cls: type, *arguments: Any, **options: Any):
        self._name = name
        self._cls = cls
        self._arguments = arguments
        self._options = options
        self._actor: Any = None
        self._started: Any = None  # the actor that has answered
        self._local = None if ray.is_initialized() else cls(*arguments)

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

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Return a method's result; if the actor died, a new one's. Raises :class:`NodeFailure`."""
        if self._local is not None:
            return await getattr(self._local, method)(*arguments)
        name = f"{self._name.replace('_', ' ')} of this node"
        for last in (False, True):
            actor = self.handle()
            try:
                if self._started is not actor:
                    await asyncio.wait_for(actor.__ray_ready__.remote(), START_SECONDS)
                    self._started = actor
                return await getattr(actor, method).remote(*arguments)
            except (asyncio.TimeoutError, TimeoutError):
                gpus = self._options.get("num_gpus", 0)
                why = f"the {gpus:g} GPUs that it reserves are not free, or its model does not load"
                raise NodeFailure(
                    f"the {name} did not start in {START_SECONDS:g} s: {why}"
                ) from None
            except (RayTaskError, RayActorError) as error:
                if last or isinstance(error, RayTaskError):
                    # Ray's messages hold the whole traceback; the cause is their last line.
                    lines = [line for line in str(error).splitlines() if line.strip()]
                    raise NodeFailure(
                        f"{name}: {lines[-1] if lines else repr(error)}"[:500]
                    ) from error
                # Another request may have replaced it already.
                if self._actor is actor:
                    logger.warning("the %s died: %s", name, error)
                    self._actor = None
            await asyncio.sleep(0.5)
