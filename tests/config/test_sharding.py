# SPDX-License-Identifier: Apache-2.0
"""verl frees the gathered root of FSDP1 only where ``fsdp_size`` says how many ranks there are."""

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import get_trainer_cls

from prime_ext.config.sharding import ENGINE_SECTIONS

GOOD = ["actor_rollout_ref.model.path=org/model", "trainer.n_gpus_per_node=4", "trainer.nnodes=2"]
CONFIGS = {
    "prime_trainer": [*GOOD, "data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=16"],
    "pspo_trainer": [
        *GOOD,
        "data.train_batch_size=16",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "critic.ppo_mini_batch_size=16",
        "step_scorer.model_path=org/rm",
    ],
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_trainers_name_the_number_of_ranks_unless_the_user_did(name, monkeypatch):
    with initialize_config_module("prime_ext.config", version_base=None):
        config = compose(name, [*CONFIGS[name], "critic.fsdp.fsdp_size=4"])
    OmegaConf.resolve(config)
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config)
    found = {key: OmegaConf.select(trainer.config, key) for key in ENGINE_SECTIONS}
    sizes = {key: section.fsdp_size for key, section in found.items() if section is not None}
    expected = dict.fromkeys(ENGINE_SECTIONS, 8) | {"critic.fsdp": 4}
    assert sizes == {key: expected[key] for key in sizes} and len(sizes) == 4 - (name == "pspo_trainer")
