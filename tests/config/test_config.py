# SPDX-License-Identifier: Apache-2.0
"""The configuration: all of verl's keys, a field for each of ours, and what variants change."""

import subprocess
from pathlib import Path
from typing import get_args

import pytest
import torch
import verl
from forked_workers import python
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import get_trainer_cls
from verl.utils.tracking import Tracking
from verl.workers.config import FSDPOptimizerConfig

import prime_ext.config
from prime_ext.algorithms.chain_reward import ChainReward
from prime_ext.config.checks import SettingsError
from prime_ext.config.compose import compose_config
from prime_ext.config.engines import ENGINE_SECTIONS
from prime_ext.config.verl_keys import KINDS, READ_UNLISTED
from prime_ext.methods.changed_keys import read_keys, variant_line
from prime_ext.methods.prm_settings import PRMSettings
from prime_ext.methods.settings import PrimeSettings
from prime_ext.methods.variants import VARIANTS
from prime_ext.verl_adapter import trainers  # noqa: F401 (verl's table of trainers gets ours)

FOLDER = Path(prime_ext.config.__file__).parent
MODEL = "actor_rollout_ref.model.path=/models/policy"
# Keys that verl reads or passes on but does not list in its own configuration, and our own.
ADDED = {
    "modules",
    "transcripts",
    "transcripts.every",
    "transcripts.prompts",
    "critic.ppo_infer_max_token_len_per_gpu",
}
ADDED_FOR_CPU = {
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "actor_rollout_ref.rollout.enable_sleep_mode",
    "critic.fsdp.mixed_precision",
    "ray_kwargs.ray_init.include_dashboard",
    "ray_kwargs.ray_init.num_gpus",
}
SOURCES_OF_UNLISTED = (
    "utils/dataset/rl_dataset.py",
    "utils/tracking.py",
    "trainer/ppo/v1/trainer_base.py",
    "trainer/ppo/reward.py",
    "experimental/reward_loop/reward_manager/dapo.py",
    "experimental/reward_loop/reward_manager/limited.py",
)
OWN_SECTIONS = {"prime_trainer": {"prime", "prm"}, "pspo_trainer": {"prime", "prm", "step_scorer"}}


def composed(*overrides, name="prime_trainer"):
    return compose_config(name, [MODEL, *overrides])


def keys(section, prefix=""):
    """Yield all keys of a mapping, those of sections too."""
    for key, value in section.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{key}.")


def raw(module, name):
    with initialize_config_module(module, version_base=None):
        return OmegaConf.to_container(compose(name))


@pytest.mark.parametrize("name", OWN_SECTIONS)
@pytest.mark.parametrize("cpu", [False, True])
def test_of_verls_keys_none_is_lost_and_few_are_added(name, cpu):
    ours = raw("prime_ext.config", f"{name}_cpu" if cpu else name)
    verl = raw("verl.trainer.config", "ppo_trainer")
    assert not set(keys(verl)) - set(keys(ours))
    added = ADDED | OWN_SECTIONS[name] | (ADDED_FOR_CPU if cpu else set())
    # Values that verl leaves empty may be filled.
    filled = ("override_config", "mixed_precision")
    new = {
        key
        for key in set(keys(ours)) - set(keys(verl))
        if not any(f".{part}." in key for part in filled)
    }
    assert {
        key for key in new if key.split(".")[0] not in OWN_SECTIONS[name]
    } == added - OWN_SECTIONS[name]


@pytest.mark.parametrize(
    ("variant", "cpu"),
    [*((variant, "") for variant in VARIANTS), ("distilled", "_cpu"), ("pspo_wrs", "_cpu")],
)
def test_every_key_has_a_field_and_every_field_a_key(variant, cpu):
    """Settings refuse unknown and missing keys."""
    config = composed(f"variant={variant}", name=f"prime_trainer{cpu}")
    PrimeSettings.from_config(config)
    PRMSettings.from_config(config)
    assert config.prime.variant == variant == variant_line(config)
    assert all(
        OmegaConf.select(config, key, default="missing") == value
        for key, value in read_keys(variant).items()
    )


@pytest.mark.slow
def test_both_commands_print_the_configuration_of_a_variant():
    verls = (
        "verl.trainer.main_ppo --config-path=pkg://prime_ext.config --config-name=prime_trainer"
        " --cfg=job".split()
    )
    for command in (verls, ["prime_ext", "config"]):
        words = [python(), "-m", *command, "variant=paper", "prime.process.discount=0.5"]
        process = OmegaConf.create(subprocess.check_output(words, text=True)).prime.process
        assert (process.gate, process.discount) == (None, 0.5)


# ---- variants ------------------------------------------------------------------------------------


def test_distilled_is_the_default_and_guarded_adds_only_the_gate():
    assert variant_line(composed()) == "distilled" and PrimeSettings.from_config(composed()).gate
    paper = composed("variant=paper")
    guarded = composed("variant=guarded")
    assert PrimeSettings.from_config(paper).gate is None and PrimeSettings.from_config(guarded).gate
    for config in (paper, guarded):
        del config.prime.variant, config.prime.process.gate
    assert paper == guarded


def test_overrides_win_over_the_variant_and_are_named():
    words = [
        "variant=paper",
        "prime.process.discount=0.5",
        "prm.loss=dpo",
        "prime.filter.lower=0.1",
    ]
    for order in (words, words[::-1]):
        config = composed(*order)
        assert config.prime.process.discount == 0.5 and config.prm.loss == "dpo"
        assert variant_line(config) == "paper (changed: prime.process.discount=0.5, prm.loss=dpo)"
    section = '{"coefficient": 1.0, "decay": 0.5, "fallback": false}'
    assert (
        variant_line(composed("variant=rloo", "prime/anchor=ema"))
        == f"rloo (changed: prime.anchor={section})"
    )
    # A recipe names one, and who starts it may name another.
    assert variant_line(composed("variant=paper", "variant=guarded")) == "guarded"


# ---- one reward for all steps of a response ------------------------------------------------------


def get_chain(name, *overrides):
    """Return the chain reward of an entry of the group ``chain``, and its process settings."""
    steps = ["variant=guarded", "prime/process=steps", "prime.process.step_score=sigmoid"]
    process = PrimeSettings.from_config(
        composed(f"chain@prime.process={name}", *steps, *overrides)
    ).process
    return ChainReward(**process.chain_arguments()), process


@pytest.mark.parametrize(
    ("name", "golden"),
    [
        ("pspo_wrs", 0.9 * 0.970858),
        ("cn_ppo", 0.9 * 0.2**0.2 * 0.880163),
        ("pspo_released", 6.614569),
    ],
)
def test_one_override_chooses_a_published_reward(name, golden):
    """Five steps of the score .9."""
    chain, process = get_chain(name)
    reward_B = chain(torch.full((1, 5), 0.9, dtype=torch.float64), torch.ones(1, 5)).reward_B
    assert float(reward_B) == pytest.approx(golden, abs=1e-6)
    assert (
        process.accumulation.reward_position == "last_token"
        and process.accumulation.single_step == "zero"
    )


# ---- comments, and engines -----------------------------------------------------------------------


BATCHES = ["data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=16"]
OTHERS = {
    "prime_trainer": [],
    "pspo_trainer": ["critic.ppo_mini_batch_size=16", "step_scorer.model_path=org/rm"],
}


@pytest.mark.parametrize("cpu", ["", "_cpu"])
def test_the_alias_of_pspo_is_the_variant(cpu):
    alias = composed(name=f"pspo_trainer{cpu}")
    assert alias == composed("variant=pspo_wrs", name=f"prime_trainer{cpu}")


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("pspo.steps=sentences", "set prime.steps=sentences"),
        ("pspo.on_failure=stop", "set prime.verifier.on_failure=stop"),
        ("pspo.accumulation.power=2", "set prime.process.accumulation.power=2"),
        ("chain@pspo=cn_ppo", "set chain@prime.process=cn_ppo"),
        ("+chain@pspo=cn_ppo", "set chain@prime.process=cn_ppo"),
        ("++pspo.steps=sentences", "set prime.steps=sentences"),
        ("trainer.v1.trainer_mode=pspo_sync", "set trainer.v1.trainer_mode=prime_sync"),
        ("pspo.judge=false", "responses are graded where a row has a gold answer"),
    ],
)
def test_keys_of_the_second_trainer_name_the_new_ones(word, remedy):
    with pytest.raises(SettingsError) as error:
        compose_config("pspo_trainer", [word])
    assert remedy in str(error.value) and word in str(error.value)


@pytest.mark.parametrize("name", OTHERS)
def test_trainers_set_fsdp_size_unless_the_user_did(name, monkeypatch):
    """verl frees the gathered root of FSDP1 only where ``fsdp_size`` is the number of ranks."""
    ranks = ["trainer.n_gpus_per_node=4", "trainer.nnodes=2", "critic.fsdp.fsdp_size=4"]
    config = compose_config(
        name, ["actor_rollout_ref.model.path=org/model", *ranks, *BATCHES, *OTHERS[name]]
    )
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config)
    sections = {key: OmegaConf.select(trainer.config, key) for key in ENGINE_SECTIONS}
    sizes = {key: section.fsdp_size for key, section in sections.items() if section is not None}
    expected = dict.fromkeys(ENGINE_SECTIONS, 8) | {"critic.fsdp": 4}
    assert sizes == {key: expected[key] for key in sizes} and len(sizes) == 4


def test_what_is_said_of_verls_keys_is_what_verl_reads():
    """These are the keys that verl's YAML files and dataclasses do not list."""
    folder = Path(verl.__file__).parent
    sources = [(folder / path).read_text() for path in SOURCES_OF_UNLISTED]
    for name in {name for names in READ_UNLISTED.values() for name in names}:
        assert any(f'.get("{name}"' in source for source in sources), name
    assert [
        *get_args(get_args(get_args(KINDS["trainer.logger"])[0])[0])
    ] == Tracking.supported_backend
    schedules = get_args(KINDS["FSDPOptimizerConfig.lr_scheduler_type"])
    assert all(FSDPOptimizerConfig(lr=0.1, lr_scheduler_type=name) for name in schedules)
    with pytest.raises(AssertionError):
        FSDPOptimizerConfig(lr=0.1, lr_scheduler_type="linear")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("prm.betta=1", "'betta' is not in struct; did you mean prm.beta?"),
        ("prime.proces.coefficient=1", "'proces' is not in struct; did you mean prime.process?"),
        ("prm.loss.x=1", "; prm.loss has no keys below it"),
        ("prime.process.discount=0", "it is a key of prime/process=step_scorer or steps or tokens"),
        ("prime.process.form=tokens", "choose it with its keys, prime/process=tokens"),
        ("prm.update_mode=none", "choose it with its keys, prm=frozen"),
        ("prm=null", "prm=null: Config group override must be"),
        ("+promt=1", "nothing reads promt=1"),
        ("variant=destilled", "Could not find 'variant/destilled'; did you mean distilled?"),
        ("prm.model.path=a=b",
         "prm.model.path=a=b is not understood (mismatched input '=' expecting <EOF>)"),
        ("chain@prime.process=plain", "; it goes with prime/process=steps or step_scorer"),
        ("trainer.nnodes=${nowhere}", "nowhere"),
    ],
)  # fmt: skip
def test_a_misspelt_word_is_answered_with_what_was_meant(word, hint):
    with pytest.raises(SettingsError) as raised:
        compose_config("prime_trainer_cpu", [word])
    assert hint in str(raised.value) and "\n" not in str(raised.value)
