# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The order of scoring and updates of the PRM, and what each order knows when."""

from types import SimpleNamespace

import pytest
import torch
from small_batch import batch_of, filled_queue, settings

from prime_ext.prm.worker import PRM_LOG_PROBS
from prime_ext.trainer.prime_step import PrimeStep
from prime_ext.trainer.prm_phase import PRMPhase


class UpdatedPRM:
    """A PRM that orders all pairs wrongly until it has been updated; its passes over the batch are counted."""

    needs_scores = False

    def __init__(self, queue, step, mode):
        self.settings = SimpleNamespace(beta=0.05, update_mode=mode, update_freq=1, accuracy_freq=0)
        self.queue, self.step, self.passes = queue, step, 0
        self.log_prob_BT = torch.full_like(step.mask_BT, -5.0)
        self.log_prob_BT[:, 0] -= step.label_B

    def refresh_reference(self, global_step):
        return False

    def reference(self, batch, as_update):
        return batch, torch.full_like(self.step.mask_BT, -5.0)

    def put_rows(self, batch, *rows):
        return batch

    def score(self, batch):
        self.passes += 1
        for key, row_T in zip(batch.keys, self.log_prob_BT, strict=True):
            self.queue.fields["train"][key][PRM_LOG_PROBS] = row_T

    def update(self, batch):
        self.passes += 1
        self.log_prob_BT = -10.0 - self.log_prob_BT
        return {"loss": 0.7}

    def update_and_score(self, batch):
        self.score(batch)
        self.passes -= 1
        return self.update(batch)

    def take_pass_counts(self):
        return {}


@pytest.mark.parametrize(
    ("mode", "gated", "passes", "rewards_of_the_updated"),
    [
        ("interleaved", True, 1, False),
        ("after", True, 2, False),
        ("before", True, 2, True),
        ("before", False, 2, True),
        ("reverse", True, 2, False),
        ("none", True, 1, False),
    ],
)
def test_the_gate_judges_the_prm_before_its_update_and_costs_no_pass(
    monkeypatch, mode, gated, passes, rewards_of_the_updated
):
    queue = filled_queue(monkeypatch)
    batch = batch_of(queue)
    step = PrimeStep.load(batch, settings(), kl_in_reward=False)
    prm, metrics = UpdatedPRM(queue, step, mode), {}
    PRMPhase(prm, step, metrics, {}, global_step=1, gated=gated).run(batch)
    assert prm.passes == passes
    # Untrained it orders every pair wrongly, updated every pair rightly.
    assert step.pairs_before.accuracy == (None if mode == "before" and not gated else 0.0)
    right = step.process_reward_BT.sum(-1)[step.label_B == 1.0].mean()
    wrong = step.process_reward_BT.sum(-1)[step.label_B == 0.0].mean()
    assert bool(right > wrong) is rewards_of_the_updated


@pytest.mark.parametrize("gated", [True, False])
def test_without_process_rewards_the_training_passes_are_enough(monkeypatch, gated):
    queue = filled_queue(monkeypatch)
    batch = batch_of(queue)
    step = PrimeStep.load(batch, settings(), kl_in_reward=False)
    prm = UpdatedPRM(queue, step, "before")
    PRMPhase(prm, step, {}, {}, global_step=1, gated=gated, rewarded=False).run(batch)
    assert prm.passes == 1 and step.pairs_before.accuracy == 0.0
