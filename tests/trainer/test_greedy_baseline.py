# SPDX-License-Identifier: Apache-2.0
"""Greedy responses of ReMax: asked for once per prompt, their rewards read, and nothing left behind."""

import math

import numpy as np
import pytest
import torch
from fake_queue import FakeQueue
from verl.utils import tensordict_utils as tu

from prime_ext.trainer.prompts import greedy_rewards

UIDS = ["000000000003", "000000000001", "000000000002"]


def prompt(uid):
    question = np.array([f"what is {uid}?"], dtype=object)
    prompt = tu.get_tensordict({"uid": np.array([uid], dtype=object), "raw_prompt": question})
    tu.assign_non_tensor_data(prompt, "global_steps", 1)
    return prompt


class Engine:
    """Answers prompts one by one: with a reward and whether it could not be judged, or None where it fails."""

    def __init__(self, queue, answers):
        self.queue, self.answers, self.waiting, self.submitted = queue, answers, [], []

    def submit(self, batch):
        for row in range(len(batch)):
            uid = str(batch["uid"][row])
            self.queue.put(uid, {"is_prompt": True, "status": "pending", "global_steps": 7})
            options = {name: batch.get(name).data for name in ("__rollout_n__", "__do_sample__", "global_steps")}
            self.submitted.append((uid, str(batch["raw_prompt"][row]), options))
            self.waiting.append(uid)

    def advance(self):
        uid = self.waiting.pop(0)
        answer = self.answers[uid.removeprefix("greedy-")]
        if answer is not None:
            info = {"acc": answer[0], "grader_failure": answer[1]}
            fields = {"rm_scores": torch.tensor([0.0, 0.0, answer[0]]), "extra_fields": {"reward_extra_info": info}}
            self.queue.put(f"{uid}_0_0", {"status": "success"}, **fields)
        self.queue.tags["train"][uid]["status"] = "failure" if answer is None else "finished"


@pytest.mark.parametrize(
    ("answers", "expected", "said"),
    [
        ([(1.0, 0.0), (0.0, 0.0), (0.5, 0.0)], [1.0, 0.0, 0.5], ""),
        ([None, (0.0, 1.0), (1.0, 0.0)], [math.nan, math.nan, 1.0], "2 of 3 greedy responses have no verdict"),
    ],
)
def test_every_prompt_is_answered_once_and_greedily_and_nothing_is_left(monkeypatch, caplog, answers, expected, said):
    queue = FakeQueue().install(monkeypatch)
    # Of the training batch, which is left alone.
    queue.put(f"{UIDS[0]}_0_0", {"response_len": 3}, rm_scores=torch.tensor([0.0, 5.0]))
    engine, prompts = Engine(queue, dict(zip(UIDS, answers, strict=True))), [prompt(uid) for uid in UIDS]
    rewards = greedy_rewards(prompts, engine.submit, 7, engine.advance)
    options = {"__rollout_n__": 1, "__do_sample__": False, "global_steps": 7}
    # Under ids of their own.
    assert engine.submitted == [(f"greedy-{uid}", f"what is {uid}?", options) for uid in UIDS]
    assert rewards == pytest.approx(dict(zip(UIDS, expected, strict=True)), nan_ok=True)
    assert said in caplog.text and bool(said) == bool(caplog.text)
    assert set(queue.tags["train"]) == {f"{UIDS[0]}_0_0"}
    assert [str(prompt["uid"][0]) for prompt in prompts] == UIDS
