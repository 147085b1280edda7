# SPDX-License-Identifier: Apache-2.0
"""A dead worker ends the wait for rollouts; a busy one does not."""

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from prime_ext.run import guarded_run
from prime_ext.run.guarded_run import WorkerWatch, cause_of_death, workers_of


class Actor:
    """Like a handle of Ray's: ``state`` is "busy", "alive" or the error that asking it ends with."""

    def __init__(self, state="alive", replica=None):
        self.state = state
        self.__ray_ready__ = self

    def remote(self):
        return self


@pytest.fixture(autouse=True)
def ray(monkeypatch):
    def get(actor):
        if isinstance(actor.state, Exception):
            raise actor.state

    monkeypatch.setattr(guarded_run.ray, "wait", lambda actors, **_: ([a for a in actors if a.state != "busy"], []))
    monkeypatch.setattr(guarded_run.ray, "get", get)


def test_busy_or_unreachable_is_not_dead():
    watch = WorkerWatch({"a": Actor("busy"), "b": Actor(ActorUnavailableError("for now", None))}, seconds=0)
    for _ in range(3):
        watch.check()
    # It looks only now and then.
    WorkerWatch({"a": Actor(ActorDiedError())}, seconds=60).check()


def test_who_is_dead_is_asked_when_something_failed(monkeypatch):
    agent, reward = Actor("busy"), Actor()
    watch = WorkerWatch({"agent-loop worker 0": agent, "reward worker 0": reward}, seconds=60)
    assert watch.death() == "" == WorkerWatch({}).death()
    reward.state = ActorUnavailableError("for now", None)
    assert watch.death() == ""
    reward.state = ActorDiedError()
    assert watch.death().startswith("the reward worker 0 died (")
    # Nobody is blamed when Ray itself is gone.
    monkeypatch.delattr(guarded_run.ray, "wait")
    assert watch.death() == ""


def test_the_cause_is_one_line():
    message = "The actor died unexpectedly.\n\tclass_name: A\nThe actor is dead because its worker process has died."
    assert cause_of_death(ValueError(message)) == "The actor is dead because its worker process has died."
    assert "\n" not in cause_of_death(ActorDiedError())
    said = "The actor is dead because its worker process has died. End of file. Some common causes include: (1) memory"
    assert cause_of_death(ValueError(said)).endswith("End of file.")


def test_who_is_watched():
    class Bag:
        def __init__(self, **items):
            self.__dict__.update(items)

    servers = Bag(get_replicas=lambda: [Bag(replica_rank=0, servers=["s0", "s1"]), Bag(replica_rank=1, servers=["s2"])])
    trainer = Bag(get_reward_handles=lambda: ["r0"], llm_server_manager=servers)
    assert workers_of(trainer, Bag(agent_loop_workers=["a0", "a1"])) == {
        "agent-loop worker 0": "a0",
        "agent-loop worker 1": "a1",
        "reward worker 0": "r0",
        "rollout server 0.0": "s0",
        "rollout server 0.1": "s1",
        "rollout server 1.0": "s2",
    }
    nobody = Bag(get_reward_handles=lambda: None, llm_server_manager=Bag(get_replicas=list))
    assert workers_of(nobody, Bag()) == {}
