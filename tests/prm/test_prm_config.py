# SPDX-License-Identifier: Apache-2.0
"""What the PRM makes of the configuration; each was wrong in an earlier implementation."""

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl.utils.torch_functional import get_constant_schedule_with_warmup

from prime_ext.config.settings import PRMSettings
from prime_ext.prm.implicit_prm import ImplicitPRM
from prime_ext.prm.plan import plan_mini_batches


@pytest.fixture(scope="module")
def config():
    overrides = ["actor_rollout_ref.model.path=nowhere", "actor_rollout_ref.rollout.temperature=0.6"]
    with initialize_config_module("prime_ext.config", version_base=None):
        return compose("prime_trainer_cpu", overrides)


def prm_of(config, **changes):
    values = OmegaConf.to_container(config.prm, resolve=True)
    return ImplicitPRM(config, PRMSettings.from_mapping({**values, **changes}))


def test_the_first_update_has_a_learning_rate(config):
    """verl's constant schedule without warm-up: its factor at step 0 is 1, not 0."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-6)
    schedule = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=config.prm.optim.lr_warmup_steps)
    assert schedule.get_last_lr() == [1e-6]


@pytest.mark.parametrize(("reference", "temperature"), [("policy", 0.6), ("kl", 0.6), ("frozen", 1.0), ("none", 1.0)])
def test_both_sides_of_the_ratio_have_the_same_temperature(config, reference, temperature):
    prm = prm_of(config, reference=reference)
    assert prm.temperature == temperature
    assert prm._update_options()["temperature"] == temperature


def test_mini_batches_are_counted_in_prompts(config):
    prm = prm_of(config, mini_batch_size=3)
    assert prm.mini_batch_rows == 12
    keys = [f"{prompt:03d}_{session}_0" for prompt in range(6) for session in range(4)]
    plan = plan_mini_batches(keys, [False] * 24, [5] * 24, prm.mini_batch_rows, data_parallel_size=1)
    assert {keys[row][:3] for row in plan.order[:12]} == {"000", "001", "002"}
