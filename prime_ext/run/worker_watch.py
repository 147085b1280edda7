# SPDX-License-Identifier: Apache-2.0
"""Whether the processes that a trainer waits for are still there.

verl's trainer waits for rollouts by looking into a store, and hears nothing of the death of those who should fill it:
a dead agent-loop worker leaves it waiting for ever, a dead reward worker or rollout server makes rollouts fail.
"""

import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError

SECONDS = 5.0


class WorkerDied(RuntimeError):
    """A process that the run needs has died; the message is one line."""


class WorkerWatch:
    """Asks every worker for a sign of life and never waits for it: one that is busy answers later, a dead one fails.

    Args:
        actors: Ray's handles by name.
        seconds: between two looks.
    """

    def __init__(self, actors: Mapping[str, Any], seconds: float = SECONDS):
        self._actors = dict(actors)
        self._seconds = seconds
        self._asked = {name: actor.__ray_ready__.remote() for name, actor in self._actors.items()}
        self._next = time.monotonic() + seconds

    def check(self) -> None:
        """Look whether it is time to.

        Raises:
            WorkerDied: a worker died.
        """
        if not self._asked or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._seconds
        answered, _ = ray.wait(list(self._asked.values()), num_returns=len(self._asked), timeout=0)
        for name in [name for name, asked in self._asked.items() if asked in answered]:
            death = _death_of(name, self._asked[name])
            if death:
                raise WorkerDied(death)
            self._asked[name] = self._actors[name].__ray_ready__.remote()

    def death(self, seconds: float = 2.0) -> str:
        """Who is dead now, in one line; empty if nobody is, as far as Ray can tell in ``seconds``.

        Rollouts fail at once when one of those who make them dies, so a run may notice their failure first.
        """
        if not self._actors:
            return ""
        try:
            asked = {name: actor.__ray_ready__.remote() for name, actor in self._actors.items()}
            answered, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=seconds)
            deaths = (_death_of(name, reference) for name, reference in asked.items() if reference in answered)
            return next(filter(None, deaths), "")
        except Exception:
            # Ray itself is gone.
            return ""


def _death_of(name: str, answered: Any) -> str:
    """What a worker that has answered, or failed to, says of its death, in one line; empty if it is alive."""
    try:
        ray.get(answered)
    except ActorDiedError as error:
        return f"the {name} died ({cause_of_death(error)})"
    except RayActorError:
        # Out of reach for the moment, as during a restart.
        pass
    return ""


def cause_of_death(error: RayActorError) -> str:
    """What Ray says of the end of a process, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("The actor is dead because") or "exit" in line.lower()]
    # Ray goes on with a list of common causes.
    return (said or lines or ["no reason given"])[0].split(" Some common causes")[0][:200]


def workers_of(trainer: Any, agent_loop_manager: Any) -> dict[str, Any]:
    """Those that fill the store: agent-loop workers, reward workers, rollout servers. By name, for a message."""
    found = {
        f"agent-loop worker {number}": worker
        for number, worker in enumerate(getattr(agent_loop_manager, "agent_loop_workers", None) or [])
    }
    for number, worker in enumerate(trainer.get_reward_handles() or []):
        found[f"reward worker {number}"] = worker
    for manager in (trainer.llm_server_manager, getattr(trainer, "standalone_server_manager", None)):
        for replica in manager.get_replicas() if manager is not None else []:
            for number, server in enumerate(replica.servers):
                found[f"rollout server {replica.replica_rank}.{number}"] = server
    return found
