# SPDX-License-Identifier: Apache-2.0
"""The Ray actor that all reward workers of a node share: found by name, started by the first, replaced when it dies."""

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
    """A client of this node's actor of one class.

    Args:
        cls: of the actor.
        arguments: of its constructor.
        name: of the actor; the node's id is added.
        max_concurrency: requests that it works on at the same time; more wait in its queue.
        num_gpus: that Ray reserves for it; None says nothing about GPUs.
    """

    def __init__(
        self, cls: type, arguments: tuple[Any, ...], name: str, max_concurrency: int, num_gpus: float | None = None
    ):
        self._cls, self._arguments, self._name = cls, arguments, name
        self._options = {"num_cpus": 0, "num_gpus": num_gpus, "max_concurrency": max_concurrency}
        self._actor: Any = None

    def handle(self) -> Any:
        """The actor of the node, which is started when there is none."""
        if self._actor is None:
            node = ray.get_runtime_context().get_node_id()
            self._actor = (
                ray.remote(self._cls)
                .options(
                    name=f"prime_ext_{self._name}_{node}",
                    get_if_exists=True,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                    **self._options,
                )
                .remote(*self._arguments)
            )
        return self._actor

    async def ask(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """What ``call`` returns for the actor; if the actor died, for a new one.

        Raises:
            RayActorError: that one died too.
            Exception: whatever ``call`` raises; raised inside the actor, which lives, it is a ``RayTaskError``.
        """
        for last in (False, True):
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
                if last:
                    raise
            await asyncio.sleep(0.5)
        raise AssertionError("asked twice")
