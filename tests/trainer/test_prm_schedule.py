# SPDX-License-Identifier: Apache-2.0
"""The PRM's learning rate schedule knows how many updates there will be."""

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from prime_ext.config.settings import PrimeSettings, PRMSettings
from prime_ext.prm.implicit_prm import ImplicitPRM
from prime_ext.trainer.prime_trainer import PrimeTrainerMixin


class _Verl:
    """What verl's trainer knows once its data are there."""

    total_training_steps = 12
    train_dataset = range(100)
    tokenizer = None

    def _init_dataloader(self):
        pass


class _Trainer(PrimeTrainerMixin, _Verl):
    def __init__(self, config, parameter_sync_step):
        self.config = config
        self.parameter_sync_step = parameter_sync_step
        self.prime = PrimeSettings.from_mapping(to_mapping(config.prime))
        self.prm = ImplicitPRM(config, PRMSettings.from_mapping(to_mapping(config.prm)))


def to_mapping(section):
    return OmegaConf.to_container(section, resolve=True)


@pytest.mark.parametrize(
    ("overrides", "parameter_sync_step", "updates"),
    [
        ([], 1, 12),
        ([], 2, 24),
        (["prm.update_freq=5"], 1, 2),
        (["prm.update_freq=50"], 1, 1),
        (["prm.optim.total_training_steps=7"], 1, 7),
    ],
)
def test_o12_r22_the_schedule_of_the_prm_knows_its_length(overrides, parameter_sync_step, updates):
    given = ["actor_rollout_ref.model.path=nowhere", "data.train_batch_size=16", *overrides]
    with initialize_config_module("prime_ext.config", version_base=None):
        config = compose("prime_trainer_cpu", given)
    _Trainer(config, parameter_sync_step)._init_dataloader()
    assert config.prm.optim.total_training_steps == updates
