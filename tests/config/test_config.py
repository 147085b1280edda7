# SPDX-License-Identifier: Apache-2.0
"""The configuration: all of verl is there under its own name, what we change is listed, every key is commented."""

import inspect
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

import prime_ext.config
from prime_ext.algorithms.chain_reward import ChainReward
from prime_ext.algorithms.shaping import gaussian, released_factor, weibull
from prime_ext.config.asynchronous import PRIME_MODES
from prime_ext.config.chain_settings import (
    AccumulationSettings,
    GaussianSettings,
    ReleasedSettings,
    ShapingSettings,
    WeibullSettings,
    accumulation_settings,
    chain_arguments,
    shaping_settings,
)
from prime_ext.config.checks import SettingsError
from prime_ext.config.pspo_settings import ActorSettings, BatchingSettings, PSPOSettings
from prime_ext.config.reward_settings import (
    OutcomeSettings,
    ProcessSettings,
    SegmentSettings,
    SelectionSettings,
    StepSettings,
)
from prime_ext.config.settings import FilterSettings, PrimeSettings, PRMSettings
from prime_ext.config.step_scorer_settings import ScorerSettings

FOLDER = Path(prime_ext.config.__file__).parent
VERL_SECTIONS = ("model", "engine", "optim", "checkpoint")

CHANGED_FOR_PRIME = {
    "actor_rollout_ref.actor.optim.lr": 5e-7,
    "actor_rollout_ref.actor.use_dynamic_bsz": True,
    "actor_rollout_ref.rollout.n": 4,
    "algorithm.adv_estimator": "rloo",
    "critic.model.path": "${actor_rollout_ref.model.path}",
    "reward.custom_reward_function.path": "pkg://prime_ext.reward.compute_score",
    "reward.reward_manager.name": "naive_with_prompt",
    "data.seed": 1,
    "trainer.experiment_name": "prime",
    "trainer.logger": ["console", "tensorboard"],
    "trainer.project_name": "prime_ext",
    "trainer.v1.trainer_mode": "prime_sync",
}
CHANGED_FOR_CPU = {
    "actor_rollout_ref.actor.fsdp_config.strategy": "fsdp2",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "actor_rollout_ref.actor.use_torch_compile": False,
    "actor_rollout_ref.model.enable_gradient_checkpointing": False,
    "actor_rollout_ref.model.override_config": {"attn_implementation": "sdpa"},
    "actor_rollout_ref.model.use_remove_padding": False,
    "actor_rollout_ref.ref.fsdp_config.strategy": "fsdp2",
    "actor_rollout_ref.ref.fsdp_config.use_torch_compile": False,
    "actor_rollout_ref.rollout.agent.default_agent_loop": "seeded_single_turn_agent",
    "actor_rollout_ref.rollout.agent.num_workers": 1,
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": "prime_ext.cpu.checkpoint_engine",
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes": 64,
    "actor_rollout_ref.rollout.dtype": "float32",
    "actor_rollout_ref.rollout.enforce_eager": True,
    "actor_rollout_ref.rollout.free_cache_engine": False,
    "actor_rollout_ref.rollout.name": "transformers",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "critic.fsdp.strategy": "fsdp2",
    "critic.fsdp.use_torch_compile": False,
    "critic.model.enable_gradient_checkpointing": False,
    "critic.model.override_config": {"attn_implementation": "sdpa"},
    "critic.model.use_remove_padding": False,
    "critic.strategy": "fsdp2",
    "data.dataloader_num_workers": 0,
    "ray_kwargs.ray_init.num_cpus": 16,
    "reward.num_workers": 1,
    "trainer.device": "cpu",
    "trainer.n_gpus_per_node": 1,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
}
# Keys that verl reads or passes on but does not list in its own configuration.
ADDED_FOR_CPU = {
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "actor_rollout_ref.rollout.enable_sleep_mode",
    "critic.fsdp.mixed_precision",
    "ray_kwargs.ray_init.include_dashboard",
    "ray_kwargs.ray_init.num_gpus",
}
CHANGED_FOR_PSPO = {
    "actor_rollout_ref.actor.optim.lr": 1.41e-5,
    "actor_rollout_ref.actor.ppo_epochs": 4,
    "actor_rollout_ref.actor.use_dynamic_bsz": True,
    "algorithm.kl_ctrl.kl_coef": 0.2,
    "algorithm.kl_ctrl.target_kl": 6.0,
    "algorithm.kl_ctrl.type": "adaptive",
    "algorithm.lam": 0.95,
    "algorithm.use_kl_in_reward": True,
    "critic.cliprange_value": 0.2,
    "critic.model.path": "${actor_rollout_ref.model.path}",
    "critic.optim.lr": "${actor_rollout_ref.actor.optim.lr}",
    "data.seed": 1,
    "reward.custom_reward_function.path": "pkg://prime_ext.reward.compute_score",
    "reward.reward_manager.name": "pspo_wrs",
    "trainer.experiment_name": "pspo_wrs",
    "trainer.logger": ["console", "tensorboard"],
    "trainer.project_name": "prime_ext",
    "trainer.v1.trainer_mode": "pspo_sync",
}
ADDED = {"trainer.console", "critic.ppo_infer_max_token_len_per_gpu"}
PRIME_SECTIONS, PSPO_SECTIONS = {"prime", "prm"} | ADDED, {"pspo", "step_scorer"} | ADDED
EXPECTED = {
    "prime_trainer": (CHANGED_FOR_PRIME, PRIME_SECTIONS),
    "prime_trainer_cpu": (CHANGED_FOR_PRIME | CHANGED_FOR_CPU, PRIME_SECTIONS | ADDED_FOR_CPU),
    "pspo_trainer": (CHANGED_FOR_PSPO, PSPO_SECTIONS),
    "pspo_trainer_cpu": (CHANGED_FOR_PSPO | CHANGED_FOR_CPU, PSPO_SECTIONS | ADDED_FOR_CPU),
}


def load(module, name):
    with initialize_config_module(module, version_base=None):
        return OmegaConf.to_container(compose(name))


@pytest.fixture(scope="module")
def verl():
    return load("verl.trainer.config", "ppo_trainer")


@pytest.fixture(scope="module", params=["prime_trainer", "prime_trainer_cpu"])
def composed(request):
    return request.param, load("prime_ext.config", request.param)


@pytest.fixture(scope="module", params=["prime_trainer", "prime_trainer_cpu"])
def paper(request):
    with initialize_config_module("prime_ext.config", version_base=None):
        return OmegaConf.to_container(compose(request.param, ["variant=paper"]))


@pytest.fixture(scope="module", params=["pspo_trainer", "pspo_trainer_cpu"])
def pspo(request):
    return load("prime_ext.config", request.param)


def differences(base, ours, prefix=""):
    """Keys of verl that are gone, that have another value, and keys that verl does not list."""
    gone, changed, added = set(), {}, set()
    for key, value in base.items():
        name = f"{prefix}{key}"
        if key not in ours:
            gone.add(name)
        elif isinstance(value, dict) and value and isinstance(ours[key], dict):
            inner = differences(value, ours[key], f"{name}.")
            gone |= inner[0]
            changed.update(inner[1])
            added |= inner[2]
        elif ours[key] != value:
            changed[name] = ours[key]
    added |= {f"{prefix}{key}" for key in ours if key not in base}
    return gone, changed, added


@pytest.mark.parametrize("name", EXPECTED)
def test_of_verls_keys_none_is_lost_and_exactly_the_listed_ones_differ(verl, name):
    expected_changes, expected_additions = EXPECTED[name]
    gone, changed, added = differences(verl, load("prime_ext.config", name))
    assert not gone
    assert changed == expected_changes
    assert added == expected_additions


CHAINS = ("plain", "pspo_wrs", "cn_ppo", "pspo_released")


def chains_of(name, *overrides):
    """The reward of a chain under an entry of the group `chain`."""
    steps = ["prime.process.granularity=step", "prime.process.step_score=sigmoid"]
    with initialize_config_module("prime_ext.config", version_base=None):
        composed = compose("prime_trainer_cpu", ["variant=guarded", f"chain@prime.process={name}", *steps, *overrides])
    process = PrimeSettings.from_mapping(OmegaConf.to_container(composed.prime)).process
    return ChainReward(**chain_arguments(process.accumulation, process.shaping)), process


@pytest.mark.parametrize(
    ("name", "golden"),
    [("pspo_wrs", 0.9 * 0.970858), ("cn_ppo", 0.9 * 0.2**0.2 * 0.880163), ("pspo_released", 6.614569)],
)
def test_one_override_chooses_a_published_reward(name, golden):
    """Five steps of the score .9."""
    chain, process = chains_of(name)
    reward_B = chain(torch.full((1, 5), 0.9, dtype=torch.float64), torch.ones(1, 5)).reward_B
    assert float(reward_B) == pytest.approx(golden, abs=1e-6)
    assert process.accumulation.place == "last_token" and process.accumulation.single_step == "zero"


def test_the_default_shapes_are_the_functions_own_defaults():
    for name, function in (("weibull", weibull), ("gaussian", gaussian), ("released", released_factor)):
        defaults = {
            key: parameter.default
            for key, parameter in inspect.signature(function).parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        chain, _ = chains_of("pspo_wrs", f"prime.process.shaping.name={name}")
        assert chain.parameters == defaults


def test_the_group_can_stand_in_another_place():
    """A reward manager with a step classifier takes the same sections."""
    with initialize_config_module("prime_ext.config", version_base=None):
        composed = OmegaConf.to_container(compose("prime_trainer_cpu", ["+chain@somewhere.else=pspo_wrs"]))
    section = composed["somewhere"]["else"]
    assert set(section) == {"accumulation", "shaping"}
    accumulation = accumulation_settings(section["accumulation"], "somewhere.else.accumulation")
    assert (accumulation.mode, shaping_settings(section["shaping"], "x").name) == ("geometric", "weibull")
    with pytest.raises(SettingsError, match="somewhere.else.accumulation.power=0 must be a number > 0"):
        accumulation_settings({**section["accumulation"], "power": 0}, "somewhere.else.accumulation")


def names_of(cls):
    return {field.name for field in fields(cls)}


def test_keys_and_settings_are_the_same(composed):
    _, ours = composed
    assert set(ours["prime"]) == names_of(PrimeSettings)
    sections = {"outcome": OutcomeSettings, "process": ProcessSettings, "filter": FilterSettings}
    sections |= {"steps": StepSettings, "segments": SegmentSettings, "selection": SelectionSettings}
    for section, cls in sections.items():
        assert is_dataclass(cls) and set(ours["prime"][section]) == names_of(cls)
    process = ours["prime"]["process"]
    assert set(process["accumulation"]) == names_of(AccumulationSettings)
    assert set(process["shaping"]) == names_of(ShapingSettings)
    shapes = {"weibull": WeibullSettings, "gaussian": GaussianSettings, "released": ReleasedSettings}
    for name, cls in shapes.items():
        assert set(process["shaping"][name]) == names_of(cls)
    assert set(ours["prm"]) - set(VERL_SECTIONS) == names_of(PRMSettings)


def test_the_default_values_are_valid_settings(composed):
    _, ours = composed
    # What the rest of the configuration decides is filled in by interpolation.
    prm = {**ours["prm"], "use_dynamic_bsz": True, "mini_batch_size": 8}
    prm.update(max_token_len_per_gpu=100, infer_max_token_len_per_gpu=100)
    assert PRMSettings.from_mapping(prm).update_mode == "before"
    assert PrimeSettings.from_mapping(ours["prime"]).filter.lower == 0.2
    assert ours["trainer"]["v1"]["trainer_mode"] in PRIME_MODES


def test_the_papers_variant_has_its_settings(paper):
    """PRIME, arXiv 2502.01456: beta .05, PRM lr 1e-6, policy lr 5e-7, band [.2, .8], no KL, no entropy bonus."""
    ours, actor, prm = paper, paper["actor_rollout_ref"]["actor"], paper["prm"]
    assert (prm["beta"], prm["optim"]["lr"], prm["optim"]["weight_decay"], prm["optim"]["clip_grad"]) == (
        0.05,
        1e-6,
        0.0,
        10.0,
    )
    assert (actor["optim"]["lr"], actor["use_kl_loss"], actor["entropy_coeff"], actor["clip_ratio"]) == (
        5e-7,
        False,
        0,
        0.2,
    )
    assert ours["algorithm"]["use_kl_in_reward"] is False
    assert (ours["prime"]["filter"]["lower"], ours["prime"]["filter"]["upper"]) == (0.2, 0.8)
    assert (ours["actor_rollout_ref"]["rollout"]["n"], ours["actor_rollout_ref"]["rollout"]["temperature"]) == (4, 1.0)


def test_the_prm_follows_the_policy_unless_told_otherwise(composed):
    _, ours = composed
    config = OmegaConf.create(ours)
    config.actor_rollout_ref.model.path = "/models/policy"
    config.actor_rollout_ref.actor.ppo_mini_batch_size = 7
    assert config.prm.model.path == config.prm.reference_path == "/models/policy"
    assert config.prm.mini_batch_size == 7
    config.prm.model.path = "/models/prm"
    assert config.prm.reference_path == "/models/prm"


def test_keys_and_settings_of_the_reward_manager_are_the_same(pspo):
    assert set(pspo["pspo"]) == names_of(PSPOSettings)
    sections = {"steps": StepSettings, "batching": BatchingSettings, "actor": ActorSettings}
    sections |= {"accumulation": AccumulationSettings, "shaping": ShapingSettings}
    for section, cls in sections.items():
        assert set(pspo["pspo"][section]) == names_of(cls)
    assert set(pspo["step_scorer"]) == names_of(ScorerSettings)
    settings = PSPOSettings.from_mapping(pspo["pspo"])
    assert not settings.pays_tokens and settings.outcome_coefficient == 0


def test_the_papers_reward_is_the_default_and_one_override_chooses_another(pspo):
    chain = pspo["pspo"]
    assert (chain["accumulation"]["mode"], chain["shaping"]["name"]) == ("geometric", "weibull")
    for name in CHAINS:
        with initialize_config_module("prime_ext.config", version_base=None):
            other = OmegaConf.to_container(compose("pspo_trainer", [f"chain@pspo={name}"]).pspo)
            there = OmegaConf.to_container(compose("prime_trainer", [f"chain@prime.process={name}"]).prime.process)
        assert all(other[section] == there[section] for section in ("accumulation", "shaping"))
        assert all(other[key] == chain[key] for key in chain if key not in ("accumulation", "shaping"))


def test_the_manager_can_be_added_to_prime():
    added = ["+pspo=pspo", "+step_scorer=step_scorer", "chain@pspo=cn_ppo", "chain@prime.process=pspo_wrs"]
    with initialize_config_module("prime_ext.config", version_base=None):
        config = compose("prime_trainer_cpu", added)
    assert (config.pspo.shaping.name, config.prime.process.shaping.name) == ("gaussian", "weibull")


def uncommented_keys(path):
    """Keys of our own sections with no comment line above them; keys of one block, without a blank line, share one."""
    lines = path.read_text().splitlines()
    found, covered, in_defaults = [], False, False
    for line in lines:
        text = line.strip()
        if not text:
            covered, in_defaults = False, False
        elif text.startswith("#"):
            covered = True
        elif text == "defaults:":
            in_defaults = True
        elif not in_defaults and not covered and text.split(":")[0] not in VERL_SECTIONS:
            found.append(text)
    return found


COMMENTED = [
    "prime/prime.yaml",
    "prm/implicit_prm.yaml",
    "pspo/pspo.yaml",
    "step_scorer/step_scorer.yaml",
    *(f"chain/{name}.yaml" for name in CHAINS),
]


@pytest.mark.parametrize("name", COMMENTED)
def test_every_key_has_a_comment_above_it(name):
    # Keys that only repeat verl's own ones for the PRM need no words of their own.
    repeated = ("strategy:", "param_offload:", "optimizer_offload:", "_target_:", "async_save:")
    assert [line for line in uncommented_keys(FOLDER / name) if not line.startswith(repeated)] == []
