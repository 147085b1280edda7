# SPDX-License-Identifier: Apache-2.0
"""Greedy responses of ReMax: asked for once per prompt, their rewards read, and nothing left behind."""

import logging
import math

import numpy as np
import pytest
import torch
from fake_queue import FakeQueue
from verl.utils import tensordict_utils as tu

from prime_ext.trainer.prompts import greedy_rewards

UIDS = ["000000000003", "000000000001", "000000000002"]


def prompts():
    def one(uid):
        question = np.array([f"what is {uid}?"], dtype=object)
        prompt = tu.get_tensordict({"uid": np.array([uid], dtype=object), "raw_prompt": question})
        tu.assign_non_tensor_data(prompt, "global_steps", 1)
        return prompt

    return [one(uid) for uid in UIDS]


class Engine:
    """Answers prompts one after the other, as time passes."""

    def __init__(self, queue, answers):
        self.queue = queue
        self.answers = answers
        self.submitted = []

    def submit(self, batch):
        for row in range(len(batch)):
            uid = str(batch["uid"][row])
            self.queue.put(uid, {"is_prompt": True, "status": "pending", "global_steps": 7})
            options = {name: batch.get(name).data for name in ("__rollout_n__", "__do_sample__", "global_steps")}
            self.submitted.append((uid, str(batch["raw_prompt"][row]), options))

    def advance(self):
        waiting = [uid for uid, *_ in self.submitted if self.queue.tags["train"][uid]["status"] == "pending"]
        uid, answer = waiting[0], self.answers[waiting[0].removeprefix("greedy-")]
        if answer is not None:
            reward, undecided = answer
            scores = torch.zeros(3)
            scores[-1] = reward
            info = {"acc": reward, "grader_failure": undecided}
            self.queue.put(
                f"{uid}_0_0", {"status": "success"}, rm_scores=scores, extra_fields={"reward_extra_info": info}
            )
        self.queue.put(
            uid, {"is_prompt": True, "status": "failure" if answer is None else "finished", "global_steps": 7}
        )


@pytest.fixture
def queue(monkeypatch):
    queue = FakeQueue().install(monkeypatch)
    queue.put("000000000003_0_0", {"response_len": 3}, rm_scores=torch.tensor([0.0, 5.0]))
    return queue


def test_every_prompt_is_answered_once_and_greedily_and_the_training_batch_is_left_alone(queue):
    answers = {UIDS[0]: (1.0, 0.0), UIDS[1]: (0.0, 0.0), UIDS[2]: (0.5, 0.0)}
    engine = Engine(queue, answers)
    original = prompts()
    rewards = greedy_rewards(original, engine.submit, 7, engine.advance)
    options = {"__rollout_n__": 1, "__do_sample__": False, "global_steps": 7}
    # Under ids of their own.
    assert engine.submitted == [(f"greedy-{uid}", f"what is {uid}?", options) for uid in UIDS]
    assert rewards == {uid: answer[0] for uid, answer in answers.items()}
    assert set(queue.tags["train"]) == {"000000000003_0_0"}
    assert [str(prompt["uid"][0]) for prompt in original] == UIDS


def test_a_failed_and_an_unjudged_response_have_no_reward_and_are_warned_about(queue, caplog):
    engine = Engine(queue, {UIDS[0]: None, UIDS[1]: (0.0, 1.0), UIDS[2]: (1.0, 0.0)})
    with caplog.at_level(logging.WARNING):
        rewards = greedy_rewards(prompts(), engine.submit, 7, engine.advance)
    assert math.isnan(rewards[UIDS[0]]) and math.isnan(rewards[UIDS[1]]) and rewards[UIDS[2]] == 1.0
    assert "2 of 3 greedy responses have no verdict" in caplog.text
    assert set(queue.tags["train"]) == {"000000000003_0_0"}
