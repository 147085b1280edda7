# SPDX-License-Identifier: Apache-2.0
"""An in-memory TransferQueue, and rollouts that finish at random times."""

import random
from collections import deque

import torch
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

UNDECIDED = "undecided"
# Accuracies of the rollouts of a prompt; None for one that failed.
GOOD = [1.0, 0.0]
HARD = [0.0, 0.0]
EASY = [1.0, 1.0]
FAILED = [None, None]


class FakeQueue:
    """Keys with tags and fields, by partition; getting absent ones fails, as in TransferQueue."""

    def __init__(self):
        self.tags: dict[str, dict[str, dict]] = {"train": {}}
        self.fields: dict[str, dict[str, dict]] = {"train": {}}

    def install(self, monkeypatch) -> "FakeQueue":
        import transfer_queue

        for name in ("kv_list", "kv_clear", "kv_batch_get", "kv_batch_put"):
            monkeypatch.setattr(transfer_queue, name, getattr(self, name))
        return self

    def put(self, key, tag, **fields):
        self.tags["train"][key] = dict(tag)
        self.fields["train"].setdefault(key, {}).update(fields)

    def kv_list(self, partition_id=None):
        return {
            name: {key: dict(tag) for key, tag in keys.items()} for name, keys in self.tags.items()
        }

    def kv_clear(self, keys, partition_id):
        for key in keys:
            self.tags[partition_id].pop(key, None)
            self.fields[partition_id].pop(key, None)

    def kv_batch_get(self, keys, partition_id, select_fields=None):
        rows = [self.fields[partition_id][key] for key in keys]
        if select_fields is None:
            return tu.list_of_dict_to_tensordict(rows)
        result = {}
        for name in select_fields:
            if all(name in row for row in rows):
                values = [row[name] for row in rows]
                if isinstance(values[0], torch.Tensor) and values[0].dim():
                    values = torch.nested.as_nested_tensor(values, layout=torch.jagged)
                result[name] = values
        return result

    def kv_batch_put(self, keys, partition_id, fields, tags=None):
        for key, tag in zip(keys, tags or [], strict=tags is not None):
            self.tags[partition_id][key] = dict(tag)
            self.fields[partition_id].setdefault(key, {})
        for name in fields.keys():
            for key, value in zip(keys, fields.get(name).unbind(0), strict=True):
                is_tensor = isinstance(value, torch.Tensor)
                self.fields[partition_id][key][name] = (
                    value if is_tensor else getattr(value, "data", value)
                )
        tags = [self.tags[partition_id][key] for key in keys]
        return KVBatchMeta(
            keys=list(keys), tags=tags, partition_id=partition_id, fields=list(fields.keys())
        )


class FakeRollouts:
    """Prompts in the order of the data, whose rollouts go to ``queue`` after random delays.

    ``outcomes`` has for each prompt the accuracy of each rollout: None for one that failed,
    UNDECIDED for one that the verifier could not judge. ``lengths`` has the length of each prompt's
    responses.
    """

    def __init__(self, queue, outcomes, seed=0, lengths=None):
        self.queue = queue
        self.outcomes = outcomes
        self.lengths = lengths or [3] * len(outcomes)
        self.random = random.Random(seed)
        self.waiting = deque(f"{number:04d}" for number in range(len(outcomes)))
        self.running: list[str] = []
        self.buffer = None
        self.most_in_flight = 0
        self.n_submitted = 0
        self.last_token = 1

    def submit(self, n):
        """Submit prompts, as the trainer does to start or refill a step."""
        for _ in range(n):
            uid = self.waiting.popleft()
            self.buffer.on_submit([uid])
            self.queue.put(uid, {"is_prompt": True, "status": "pending", "global_steps": 1})
            self.running.append(uid)
            self.n_submitted += 1
        self.most_in_flight = max(self.most_in_flight, len(self.running))

    def requeue(self, uids):
        self.waiting.extendleft(reversed(uids))

    def advance(self, *_):
        """Let time pass: some prompts finish, often none."""
        for uid in self.running:
            self.queue.tags["train"][uid]["status"] = "running"
        self.random.shuffle(self.running)
        for _ in range(min(len(self.running), self.random.choice([0, 1, 1, 2, 5]))):
            self._finish(self.running.pop())
        return 0.0

    def _finish(self, uid):
        outcomes = self.outcomes[int(uid)]
        sessions = list(enumerate(outcomes))
        self.random.shuffle(sessions)
        length = self.lengths[int(uid)]
        for session, accuracy in sessions:
            if accuracy is not None:
                info = {"reward_extra_info": _reward_info(accuracy)}
                response = torch.tensor([1] * (length - 1) + [self.last_token])
                tag = {"response_len": length, "seq_len": length + 1}
                self.queue.put(f"{uid}_{session}_0", tag, extra_fields=info, responses=response)
        self.queue.tags["train"][uid]["status"] = "failure" if None in outcomes else "finished"


def _reward_info(accuracy):
    if accuracy == UNDECIDED:
        verdict = {
            "verdict": "timeout",
            "grader_failure": 1.0,
            "verifier_seconds": 6.0,
            "verifier_detail": "stuck",
        }
        return {"acc": 0.0, **verdict}
    verdict = "correct" if accuracy == 1.0 else "wrong"
    return {"acc": accuracy, "verdict": verdict, "grader_failure": 0.0, "verifier_seconds": 0.5}
