# SPDX-License-Identifier: Apache-2.0
"""Rollouts that end with an error are counted, leave with their prompt, and end a bad run."""

import asyncio
import logging
from types import SimpleNamespace

import pytest
import transfer_queue
from fake_queue import FAILED, GOOD, FakeQueue, FakeRollouts
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from prime_ext.algorithms.prompt_filter import AccuracyBand
from prime_ext.methods.settings import VerifierSettings
from prime_ext.methods.store import group_uid
from prime_ext.verl_adapter.patches import replay_buffer
from prime_ext.verl_adapter.prompt_filter_buffer import PromptFilterReplayBuffer
from prime_ext.verl_adapter.prompt_judge import PromptJudge
from prime_ext.verl_adapter.rollout_losses import MOST_LOST, RolloutLosses, RolloutsLost

# Of two rollouts one is lost.
HALF = [1.0, None]
OPTIONS = {
    "trainer_config": OmegaConf.create({}),
    "max_off_policy_threshold": None,
    "max_off_policy_strategy": "drop",
    "sampler_kwargs": OmegaConf.create({}),
    "poll_interval": 0.0,
}


class Rollouts(FakeRollouts):
    """Rollouts of prompts in order that tell their error, as the patched worker does."""

    def _finish(self, uid):
        super()._finish(uid)
        if None in self.outcomes[int(uid)]:
            self.queue.tags["train"][uid]["prime_ext_error"] = f"ValueError: no {uid}"


def start(monkeypatch, kind, outcomes, batch_size, **changes):
    rollouts = Rollouts(FakeQueue().install(monkeypatch), outcomes)
    options = {**OPTIONS, "refill_fn": rollouts.submit, **changes}
    mode = "colocate_async" if kind is ReplayBufferAsync else "sync"
    rollouts.buffer = kind(trainer_mode=mode, **options)
    rollouts.buffer.on_submit = getattr(rollouts.buffer, "on_submit", lambda uids: None)
    monkeypatch.setattr(rollouts.buffer, "_wait_for_next_poll", rollouts.advance)
    losses = RolloutLosses({"train": 2, "val": 1}, 2 * batch_size)
    replay_buffer.apply(rollouts.buffer, losses)
    return rollouts, losses


def judged(**options):
    judge = PromptJudge(AccuracyBand(0.2, 0.8), "acc", VerifierSettings("drop"))
    return {"judge": judge, "max_in_flight": 8, "max_examined": 99, "partial": False, **options}


@pytest.mark.parametrize("kind", [ReplayBuffer, ReplayBufferAsync, PromptFilterReplayBuffer])
def test_a_run_that_loses_most_rollouts_ends_with_the_error(monkeypatch, kind):
    own = judged(requeue=lambda uids: None) if kind is PromptFilterReplayBuffer else {}
    rollouts, _ = start(monkeypatch, kind, [HALF, FAILED] * 20, 4, **own)
    rollouts.submit(8)
    with pytest.raises(RolloutsLost, match=r"of \d+ rollouts were lost, .*ValueError: no 00\d\d$"):
        rollouts.buffer.sample(global_steps=1, partition_id="train", batch_size=4)


@pytest.mark.parametrize("kind", [ReplayBufferAsync, PromptFilterReplayBuffer])
def test_prompts_with_lost_rollouts_are_replaced_and_counted(monkeypatch, caplog, kind):
    own = {}
    outcomes = [GOOD, HALF] + [GOOD] * 20
    if kind is PromptFilterReplayBuffer:
        own = judged()
        own["requeue"] = lambda uids: rollouts.requeue(uids)
    rollouts, losses = start(monkeypatch, kind, outcomes, 4, **own)
    rollouts.submit(8)
    batch, _ = rollouts.buffer.sample(global_steps=1, partition_id="train", batch_size=7)
    uids = [group_uid(key) for key in batch.keys]
    assert "0001" not in uids and all(uids.count(uid) == 2 for uid in uids)
    with caplog.at_level(logging.WARNING):
        assert losses.end_step() == 1
    assert "were lost, the last one to ValueError: no 0001; their prompts" in caplog.text
    assert losses.end_step() == 0


def test_an_agent_loop_without_output_loses_its_rollout(monkeypatch):
    """verl calls the group finished."""
    rollouts, losses = start(monkeypatch, ReplayBuffer, [[1.0], GOOD, GOOD, GOOD], 9)
    rollouts.submit(4)
    rollouts.buffer.sample(global_steps=1, partition_id="train", batch_size=4)
    assert losses.end_step() == 1 and losses.incomplete["train"] == {"0000"}


@pytest.mark.parametrize("lost", [1, 2])
def test_validation_has_the_same_limit(monkeypatch, caplog, lost):
    queue = FakeQueue().install(monkeypatch)
    queue.tags["val"] = {}
    losses = RolloutLosses({"train": 2, "val": 1}, 4)
    buffer = ReplayBuffer(trainer_mode="sync", **OPTIONS)
    replay_buffer.apply(buffer, losses)
    n = round(1 / MOST_LOST) + 1
    for number in range(n):
        failed = number < lost
        tag = {"is_prompt": True, "global_steps": 0, "status": "failure" if failed else "finished"}
        queue.tags["val"][f"u{number}"] = tag | ({"prime_ext_error": "E: why"} if failed else {})
        if not failed:
            queue.tags["val"][f"u{number}_0_0"] = {}
    if lost == 1:
        buffer._sync_metadata_from_transfer_queue()
        assert f"validation: 1 of {n} rollouts were lost, the last one to E: why" in caplog.text
        return
    with pytest.raises(RolloutsLost, match=f"^{lost} of {n} rollouts were lost"):
        buffer._sync_metadata_from_transfer_queue()


def test_what_a_checkpoint_restored_is_not_counted(monkeypatch):
    """A rollout that the verifier could not judge has left the store before."""
    queue = FakeQueue().install(monkeypatch)
    queue.tags["train"] = {
        "a": {"is_prompt": True, "global_steps": 1, "status": "finished"},
        "a_0_0": {},
    }
    losses = RolloutLosses({"train": 2}, 2)
    buffer = ReplayBuffer(trainer_mode="sync", **OPTIONS)
    replay_buffer.apply(buffer, losses)
    buffer._sync_metadata_from_transfer_queue()
    assert losses.end_step() == 0 and buffer.finished_keys["train"] == {"a"}


def test_a_workers_error_reaches_the_store(monkeypatch):
    """The worker is verl's, with an agent that nobody has registered."""
    put = []

    async def keep(**arguments):
        put.append(arguments)

    monkeypatch.setattr(transfer_queue, "async_kv_put", keep)
    trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}
    run = AgentLoopWorker._run_agent_loop(
        SimpleNamespace(), {}, trajectory, agent_name="nobodys_agent", trace=False, uid="u"
    )
    with pytest.raises(AssertionError):
        asyncio.run(run)
    (one,) = put
    assert (one["key"], one["partition_id"]) == ("u", "train")
    assert "Agent loop nobodys_agent not registered" in one["tag"]["prime_ext_error"]
