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
"""What a checkpoint remembers of the guards."""

from collections import deque
from types import SimpleNamespace

import pytest
import torch

from prime_ext.algorithms.normalization import OutcomeRelativeScale
from prime_ext.algorithms.reliability_gate import ReliabilityGate
from prime_ext.trainer.prime_trainer import STATE_FILE, PrimeTrainerMixin


def trainer(gate=None, scale=None):
    algorithm = SimpleNamespace(use_kl_in_reward=False)
    config = SimpleNamespace(algorithm=algorithm, trainer=SimpleNamespace(del_local_ckpt_after_load=False))
    prompts = {"_queued_prompts": deque(), "_prompts_fetched": 7, "_buffers_prompts": False, "trainer_mode": "sync"}
    buffer = {"_requeues_prompts": True, "replay_buffer": SimpleNamespace(acceptance_rate=0.5)}
    return SimpleNamespace(prm=None, gate=gate, scale=scale, config=config, **prompts, **buffer)


def test_gate_and_scale_go_on_where_they_were(tmp_path):
    gate, scale = ReliabilityGate(0.9, 0.5), OutcomeRelativeScale(share=0.5)
    gate.update(0.8)
    scale.update(2.0, 1.0)
    PrimeTrainerMixin._save_prime_state(trainer(gate, scale), tmp_path)
    resumed = trainer(ReliabilityGate(0.9, 0.5), OutcomeRelativeScale(share=0.5))
    PrimeTrainerMixin._load_prime_state(resumed, tmp_path)
    assert resumed.gate == gate and resumed.scale == scale
    assert resumed.scale.update(4.0, 1.0) == pytest.approx(scale.update(4.0, 1.0))


def test_a_guard_that_is_new_to_the_run_starts_afresh_and_one_that_is_gone_is_no_error(tmp_path):
    PrimeTrainerMixin._save_prime_state(trainer(), tmp_path)
    resumed = trainer(ReliabilityGate(), OutcomeRelativeScale())
    PrimeTrainerMixin._load_prime_state(resumed, tmp_path)
    assert resumed.gate == ReliabilityGate() and resumed.scale == OutcomeRelativeScale()
    PrimeTrainerMixin._save_prime_state(resumed, tmp_path)
    PrimeTrainerMixin._load_prime_state(trainer(), tmp_path)


def test_a_resumed_run_submits_as_many_prompts_as_the_uninterrupted_one(tmp_path):
    saved, resumed = trainer(), trainer()
    saved.replay_buffer.acceptance_rate = 0.8125
    PrimeTrainerMixin._save_prime_state(saved, tmp_path)
    PrimeTrainerMixin._load_prime_state(resumed, tmp_path)
    assert resumed.replay_buffer.acceptance_rate == 0.8125


def test_a_checkpoint_of_a_version_without_the_scale_is_read(tmp_path):
    PrimeTrainerMixin._save_prime_state(trainer(), tmp_path)
    state = torch.load(tmp_path / STATE_FILE, weights_only=False)
    del state["relative_scale"]
    torch.save(state, tmp_path / STATE_FILE)
    resumed = trainer(scale=OutcomeRelativeScale())
    PrimeTrainerMixin._load_prime_state(resumed, tmp_path)
    assert resumed.scale == OutcomeRelativeScale()
