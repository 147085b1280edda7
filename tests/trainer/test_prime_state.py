# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint remembers of the guards."""

import math
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_batch import settings
from verl.utils import tensordict_utils as tu

from prime_ext.algorithms.normalization import OutcomeRelativeScale
from prime_ext.algorithms.prm_accuracy import PairCount
from prime_ext.algorithms.reliability_gate import ReliabilityGate
from prime_ext.config.settings import SettingsError
from prime_ext.trainer.policy_loss import PolicyTargets
from prime_ext.trainer.prime_trainer import STATE_FILE, PrimeTrainerMixin
from prime_ext.trainer.prompts import prompts_to_data


def trainer(gate=None, scale=None):
    algorithm = SimpleNamespace(use_kl_in_reward=False)
    targets = PolicyTargets(None, settings())
    config = SimpleNamespace(algorithm=algorithm, trainer=SimpleNamespace(del_local_ckpt_after_load=False))
    prompts = {"_queued_prompts": deque(), "_prompts_fetched": 7, "_buffers_prompts": False, "trainer_mode": "sync"}
    buffer = {"_requeues_prompts": True, "replay_buffer": SimpleNamespace(acceptance_rate=0.5)}
    return SimpleNamespace(prm=None, targets=targets, gate=gate, scale=scale, config=config, **prompts, **buffer)


def test_gate_and_scale_go_on_where_they_were(tmp_path):
    gate, scale = ReliabilityGate(0.9, 0.5), OutcomeRelativeScale(share=0.5)
    gate.update(PairCount(8.0, 10.0))
    scale.update(2.0, 1.0)
    saved = trainer(gate, scale)
    saved.replay_buffer.acceptance_rate = 0.8125
    PrimeTrainerMixin._save_prime_state(saved, tmp_path)
    resumed = trainer(ReliabilityGate(0.9, 0.5), OutcomeRelativeScale(share=0.5))
    PrimeTrainerMixin._load_prime_state(resumed, tmp_path)
    # So that it submits as many prompts as the uninterrupted run.
    assert resumed.replay_buffer.acceptance_rate == 0.8125
    assert resumed.gate == gate and resumed.scale == scale
    assert resumed.gate.update(PairCount(1.0, 3.0)) == gate.update(PairCount(1.0, 3.0))
    assert resumed.scale.update(4.0, 1.0) == pytest.approx(scale.update(4.0, 1.0))


def test_a_guard_that_is_new_to_the_run_starts_afresh_and_one_that_is_gone_is_no_error(tmp_path):
    PrimeTrainerMixin._save_prime_state(trainer(), tmp_path)
    resumed = trainer(ReliabilityGate(), OutcomeRelativeScale())
    PrimeTrainerMixin._load_prime_state(resumed, tmp_path)
    assert resumed.gate == ReliabilityGate() and resumed.scale == OutcomeRelativeScale()
    PrimeTrainerMixin._save_prime_state(resumed, tmp_path)
    PrimeTrainerMixin._load_prime_state(trainer(), tmp_path)


def prompt(**values):
    """As verl makes one of a row of the dataset."""
    fields = {name: np.fromiter([value], dtype=object, count=1) for name, value in values.items()}
    return tu.get_tensordict({**fields, "dummy_tensor": torch.tensor([[3]], dtype=torch.uint8)})


ROW = {
    "raw_prompt": [{"role": "user", "content": "1 + 1 = ?\n\u00e9"}],
    "reward_model": {"ground_truth": "2", "style": None, "tests": [[], [1, 2.5]]},
    "extra_info": {},
    "index": 7,
    "uid": "000000000003",
}


def test_prompts_of_the_queue_come_back_as_they_were(tmp_path):
    saved = trainer()
    saved._queued_prompts = deque([prompt(**ROW), prompt(**{**ROW, "index": 8, "weight": math.nan})])
    PrimeTrainerMixin._save_prime_state(saved, tmp_path)
    resumed = trainer()
    PrimeTrainerMixin._load_prime_state(resumed, tmp_path)
    assert len(resumed._queued_prompts) == 2
    for before, after in zip(saved._queued_prompts, resumed._queued_prompts, strict=True):
        assert before.batch_size == after.batch_size and set(before.keys()) == set(after.keys()) > set(ROW)
        for name in before.keys():
            assert type(after.get(name)) is type(before.get(name))
            assert str(after.get(name).tolist()) == str(before.get(name).tolist())
        assert after["dummy_tensor"].dtype == torch.uint8


def test_a_checkpoint_that_would_run_code_is_not_read(tmp_path):
    """Of earlier versions: a pickle, which does what its writer likes."""
    (tmp_path / "prime_ext.pt").write_bytes(b"cos\nabort\n(tR.")
    with pytest.raises(FileNotFoundError, match=f"{STATE_FILE} is missing: .* of this version of prime_ext"):
        PrimeTrainerMixin._load_prime_state(trainer(), tmp_path)
    (tmp_path / STATE_FILE).write_bytes(b"cos\nabort\n(tR.")
    with pytest.raises(ValueError):
        PrimeTrainerMixin._load_prime_state(trainer(), tmp_path)


@pytest.mark.parametrize("value", [b"bytes", (1, 2), {"at": {1: 2}}, np.float32(1.0)])
def test_a_prompt_that_json_would_change_is_refused(value):
    with pytest.raises(SettingsError, match="^data.train_files: image of a prompt holds .*; checkpoints keep"):
        prompts_to_data(prompt(**ROW, image=value))
