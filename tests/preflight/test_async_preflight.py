# SPDX-License-Identifier: Apache-2.0
"""Wrong combinations of the asynchronous modes: one line each, which names the key, before Ray starts."""

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf, open_dict

from prime_ext.preflight.check import check_config

COLOCATE = {"trainer.v1.trainer_mode": "prime_colocate_async"}
SEPARATE = {
    "trainer.v1.trainer_mode": "prime_separate_async",
    "trainer.v1.separate_async.parameter_sync_step": 2,
    "actor_rollout_ref.rollout.nnodes": 1,
    "actor_rollout_ref.rollout.n_gpus_per_node": 2,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "tcp",
    "ray_kwargs.ray_init.num_gpus": 3,
}


@pytest.fixture(scope="module")
def composed():
    with initialize_config_module("prime_ext.config", version_base=None):
        return {name: compose(name, ["variant=guarded"]) for name in ("prime_trainer", "prime_trainer_cpu")}


@pytest.fixture
def problems_of(composed, monkeypatch):
    """Checks a configuration that is in order but for the given changes."""
    monkeypatch.setenv("VERL_PLATFORM", "cpu")

    def check(changes, name="prime_trainer_cpu"):
        config = composed[name].copy()
        good = {"data.train_batch_size": 16, "actor_rollout_ref.actor.ppo_mini_batch_size": 8}
        with open_dict(config):
            for key, value in {**good, **changes}.items():
                OmegaConf.update(config, key, value, force_add=True)
        OmegaConf.resolve(config)
        return check_config(config)

    return check


@pytest.mark.parametrize("mode", [COLOCATE, SEPARATE], ids=["colocate", "separate"])
def test_both_modes_are_accepted(problems_of, mode):
    assert problems_of(mode) == []


def test_the_separate_mode_on_accelerators_is_accepted(problems_of):
    changes = {**SEPARATE, "trainer.n_gpus_per_node": 4, "actor_rollout_ref.rollout.n_gpus_per_node": 4}
    changes["actor_rollout_ref.rollout.checkpoint_engine.backend"] = "nccl"
    assert problems_of(changes, "prime_trainer") == []


WRONG = [
    (COLOCATE, "trainer.v1.colocate_async.num_warmup_batches", -1, "num_warmup_batches=-1 must be a number >= 0"),
    (COLOCATE, "trainer.v1.sampler.max_off_policy_threshold", 0, "must be null or a whole number >= 1"),
    (COLOCATE, "trainer.v1.sampler.max_off_policy_strategy", "keep", "='keep' is not one of drop, wait"),
    (COLOCATE, "skip.rollout_tq.enable", True, "skip.rollout_tq.enable=true replays whole batches"),
    (COLOCATE, "prm.mini_batch_size", 3, "data.train_batch_size=16 is not a multiple of prm.mini_batch_size=3"),
    (SEPARATE, "trainer.v1.separate_async.parameter_sync_step", 0, "parameter_sync_step=0 must be a whole number >= 1"),
    (
        SEPARATE,
        "data.train_batch_size",
        24,
        "data.train_batch_size=24 must be trainer.v1.separate_async.parameter_sync_step=2 times "
        "actor_rollout_ref.actor.ppo_mini_batch_size=8, which is 16",
    ),
    (SEPARATE, "prm.mini_batch_size", 16, "prm.mini_batch_size=16 is above the 8 prompts of an update"),
    (SEPARATE, "prm.mini_batch_size", 3, "the 8 prompts of an update (data.train_batch_size over parameter_sync_step)"),
    (SEPARATE, "actor_rollout_ref.rollout.nnodes", 0, "rollout.nnodes=0: prime_separate_async needs devices"),
    (SEPARATE, "actor_rollout_ref.rollout.n_gpus_per_node", 0, "rollout.n_gpus_per_node=0: prime_separate_async needs"),
    (
        SEPARATE,
        "actor_rollout_ref.rollout.tensor_model_parallel_size",
        4,
        "is 2, which is no multiple of the 4 devices",
    ),
    (
        SEPARATE,
        "actor_rollout_ref.rollout.checkpoint_engine.backend",
        "naive",
        "checkpoint_engine.backend=naive reaches servers on the trainer's own devices only; prime_separate_async needs "
        "another, tcp for example",
    ),
    (SEPARATE, "ray_kwargs.ray_init.num_gpus", 1, "CPU mode needs 3 logical GPU slots, one per rank and rollout rank"),
    (
        SEPARATE,
        "ray_kwargs.ray_init.num_cpus",
        8,
        "verl reserves 9 logical CPUs (3 for each of 1 ranks, 2 for each of 2",
    ),
]


@pytest.mark.parametrize("mode, key, value, message", WRONG, ids=[f"{key}={value}" for _, key, value, _ in WRONG])
def test_a_wrong_value_is_named(problems_of, mode, key, value, message):
    problems = problems_of({**mode, key: value})
    assert any(message in problem for problem in problems), problems
    assert all("\n" not in problem for problem in problems)


def test_switching_needs_replicas_to_switch(problems_of):
    changes = {"trainer.v1.separate_async.hybrid_rollout.enable_switch": True}
    assert problems_of({**SEPARATE, **changes}) == []
    (problem,) = problems_of({**SEPARATE, **changes, "actor_rollout_ref.hybrid_engine": False})
    assert "actor_rollout_ref.hybrid_engine=true is needed" in problem


def test_keys_of_the_other_modes_are_not_looked_at(problems_of):
    assert problems_of({**COLOCATE, "trainer.v1.separate_async.num_warmup_batches": -1}) == []
