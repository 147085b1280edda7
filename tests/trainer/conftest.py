# SPDX-License-Identifier: Apache-2.0
"""Trainers as objects."""

import pytest
from omegaconf import OmegaConf, open_dict
from own_sources import own_sources  # noqa: F401


@pytest.fixture
def make(composed, monkeypatch):
    """Return a function that builds the trainer of the module's configuration, as verl does."""
    monkeypatch.setenv("VERL_PLATFORM", "cpu")

    def build(**changes):
        from verl.trainer.ppo.v1.trainer_base import get_trainer_cls

        config = composed.copy()
        with open_dict(config):
            for key, value in changes.items():
                OmegaConf.update(config, key, value, force_add=True)
        OmegaConf.resolve(config)
        return get_trainer_cls(config.trainer.v1.trainer_mode)(config)

    return build
