# SPDX-License-Identifier: Apache-2.0
"""What cannot work is refused before Ray or a model starts, in one line that names the key; what can, is not."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf, open_dict
from tokenizers import Tokenizer, models
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

from prime_ext.algorithms import (
    accumulation,
    chain_reward,
    normalization,
    process_shaping,
    shaping,
    step_credit,
)
from prime_ext.algorithms.estimators import ESTIMATORS
from prime_ext.algorithms.prm_losses import PRM_LOSSES
from prime_ext.config import chain_settings, pspo_settings, reward_settings, settings
from prime_ext.config.checks import SettingsError
from prime_ext.config.compose import compose_config
from prime_ext.config.pspo_settings import PSPOSettings
from prime_ext.config.settings import PrimeSettings, PRMSettings
from prime_ext.config.step_scorer_settings import ScorerSettings
from prime_ext.preflight.check import check_config, check_files
from prime_ext.step_rm.description import FILE, Description, PairFormat
from prime_ext.step_rm.labels import ID2LABEL
from prime_ext.step_rm.splitting import SPLITTERS
from prime_ext.train import preflight
from prime_ext.verifiers.sandbox import find_protection

ADDED = ["+pspo=pspo", "+step_scorer=step_scorer", "reward.reward_manager.name=pspo_wrs"]
# Configurations by a short name.
CONFIGS = {
    "cpu": ("prime_trainer_cpu", ["variant=guarded"]),
    "gpu": ("prime_trainer", ["variant=guarded"]),
    "distilled": ("prime_trainer_cpu", []),
    "paper": ("prime_trainer_cpu", ["variant=paper"]),
    "pspo": ("pspo_trainer_cpu", []),
    "pspo_gpu": ("pspo_trainer", []),
    "pspo_in_prime": ("prime_trainer_cpu", ADDED),
    "scored": ("prime_trainer_cpu", ["variant=step_scorer"]),
    "scored_gpu": ("prime_trainer", ["variant=step_scorer"]),
}


def write_model(folder, n_embeddings=8, tokens=("a", "b", "c"), **config):
    folder.mkdir(parents=True)
    config = {"model_type": "llama", "vocab_size": n_embeddings, "tie_word_embeddings": True, **config}
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    Tokenizer(models.WordLevel(vocabulary, unk_token=tokens[0])).save(str(folder / "tokenizer.json"))
    return str(folder)


def bare(folder):
    """A model without a tokenizer."""
    write_model(folder)
    (folder / "tokenizer.json").unlink()
    return str(folder)


def write_parquet(path, n_rows=2, **columns):
    values = {"prompt": "x", "data_source": "gsm8k", "reward_model": "x", **columns}
    table = pyarrow.table({name: [value] * n_rows for name, value in values.items() if value is not None})
    pyarrow.parquet.write_table(table, path)
    return str(path)


def write_step_rm(folder, id2label=ID2LABEL):
    """The part of a step reward model that is read before anything starts."""
    folder.mkdir(parents=True)
    config = {"model_type": "bert"} | ({"id2label": id2label} if id2label else {})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / FILE).write_text(Description(PairFormat(), 1.0, (-1, 0, 1)).to_json())
    return str(folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model and data that are in order."""
    root = tmp_path_factory.mktemp("files")
    model, data = write_model(root / "policy"), write_parquet(root / "data.parquet")
    return {"policy": model, "data": data, "step_rm": write_step_rm(root / "step_rm")}


@pytest.fixture(scope="module")
def composed():
    with initialize_config_module("prime_ext.config", version_base=None):
        return {name: compose(*words) for name, words in CONFIGS.items()}


@pytest.fixture
def problems_of(composed, files, monkeypatch):
    """What is said of a configuration that is in order but for the given changes."""
    monkeypatch.setenv("VERL_PLATFORM", "cpu")

    def check(changes=None, name="cpu"):
        config = composed[name].copy()
        good = {
            "data.train_files": files["data"],
            "data.val_files": files["data"],
            "actor_rollout_ref.model.path": files["policy"],
            "data.train_batch_size": 16,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
        }
        if name.startswith(("pspo", "scored")):
            good["step_scorer.model_path"] = files["step_rm"]
        with open_dict(config):
            for key, value in {**good, **(changes or {})}.items():
                OmegaConf.update(config, key, value, force_add=True)
        OmegaConf.resolve(config)
        problems = list(dict.fromkeys([*check_config(config), *check_files(config)]))
        assert all("\n" not in problem for problem in problems)
        return problems

    return check


@pytest.mark.parametrize("name", CONFIGS)
def test_the_configurations_are_accepted_once_files_are_named(problems_of, name):
    assert problems_of({"trainer.n_gpus_per_node": 8 if "gpu" in name else 1}, name) == []


# ---- single keys ---------------------------------------------------------------------------------------------------


def leaves(cls, prefix):
    """Key and type of every value of a settings class."""
    kinds = get_type_hints(cls, include_extras=True)
    for name, kind in ((field.name, kinds[field.name]) for field in dataclasses.fields(cls)):
        if dataclasses.is_dataclass(kind):
            yield from leaves(kind, f"{prefix}.{name}")
        else:
            yield f"{prefix}.{name}", kind


CLASSES = {"prime": PrimeSettings, "prm": PRMSettings, "pspo": PSPOSettings, "step_scorer": ScorerSettings}
LEAVES = [leaf for section, cls in CLASSES.items() for leaf in leaves(cls, section)]
SECTIONS = sorted({key.rpartition(".")[0] for key, _ in LEAVES})
# Whose content is another's to judge.
FREE = ("prm.loss_options", "prm.teachers", "prm.inputs.template", "step_scorer.pair_format")


@pytest.fixture(scope="module")
def said_of(composed):
    """What settings say of their section with one key changed; no list where they accept it."""

    def check(key, value):
        section = key.partition(".")[0]
        config = composed["pspo" if section in ("pspo", "step_scorer") else "cpu"]
        values = {section: OmegaConf.to_container(config[section], resolve=True)}
        values.get("step_scorer", {})["model_path"] = "step_rm"
        *parents, name = key.split(".")
        functools.reduce(dict.__getitem__, parents, values)[name] = value
        try:
            CLASSES[section].from_mapping(values[section])
        except SettingsError as error:
            return list(error.problems)
        return []

    return check


@pytest.mark.parametrize(("key", "kind"), LEAVES, ids=[key for key, _ in LEAVES])
def test_a_value_of_another_type_names_the_key_and_what_would_be_right(said_of, key, kind):
    for value in [[["x"]]] if key in FREE else [[["x"]], {"no": "such"}]:
        (problem,) = said_of(key, value)
        assert problem.startswith((f"{key}={value!r} must be", f"{key}={value!r} is not one of"))


@pytest.mark.parametrize("section", SECTIONS)
def test_unknown_keys_and_values_in_place_of_sections_are_named(said_of, section):
    (problem,) = said_of(f"{section}.typo", 1)
    assert problem.startswith(f"unknown key {section}.typo; known keys: ")
    assert said_of(section, 3) == [f"{section}=3 must be a section with keys"]


# ---- values and combinations ----------------------------------------------------------------------------------------

ACTOR, CRITIC = "actor_rollout_ref.actor", "critic.ppo_infer_max_token_len_per_gpu"
STEPS = {"prime.process.granularity": "step"}
SCORES = {**STEPS, "prime.process.step_score": "sigmoid"}
MODE, SHAPE = "prime.process.accumulation.mode", "prime.process.shaping.name"
POSITION, CREDIT = "prime.process.accumulation.reward_position", "prime.process.credit"
GRPO = {"algorithm.adv_estimator": "grpo"}
ROLLOUT = "actor_rollout_ref.rollout"
TOOL_FILE = f"{ROLLOUT}.multi_turn.tool_config_path"
LOOP = {
    f"{ROLLOUT}.agent.default_agent_loop": "bounded_tool_agent",
    TOOL_FILE: str(Path(__file__).parents[2] / "recipes" / "agent" / "python_tool.yaml"),
}
TOOLS = {**LOOP, "prime.turns.coefficient": 0.5, f"{ROLLOUT}.agent.default_agent_loop": "tool_agent"}
CHAIN = {**SCORES, MODE: "geometric", SHAPE: "weibull"}
WEIBULL = "prime.process.shaping.weibull"
GAE = {"algorithm.adv_estimator": "gae", "prime.outcome.estimator": "gae"}
BOTH_GAE = {**GAE, "prime.process.estimator": "gae"}
DISTILLED = {"prime.process.form": "kl", "prime.process.target": "policy", "prm.update_mode": "before"}
ANCHOR = {"prime.anchor.kind": "ema"}
ALONE = {"prime.process.coefficient": 0.0, "prm.enable": False}
REFRESH = {"prm.reference_refresh_freq": 4}
FROZEN_PRM = {"prm.update_mode": "none"}
ANSWERS = {
    **FROZEN_PRM,
    "prm.reference": "none",
    "prime.process.scorer": "answer_likelihood",
    "prime.process.granularity": "step",
}
SERVED = {**FROZEN_PRM, "prm.reference": "policy", "prm.server.address": "http://127.0.0.1:9"}
SELF_TEACHER = {**FROZEN_PRM, "prm.follow_policy.freq": 1}
JUDGED = {"prm.train_on": "judged"}
COLOCATE = {"trainer.v1.trainer_mode": "prime_colocate_async"}
SEPARATE = {
    "trainer.v1.trainer_mode": "prime_separate_async",
    "trainer.v1.separate_async.parameter_sync_step": 2,
    "actor_rollout_ref.rollout.nnodes": 1,
    "actor_rollout_ref.rollout.n_gpus_per_node": 2,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "tcp",
    "ray_kwargs.ray_init.num_gpus": 3,
}
SYNC_STEP = "trainer.v1.separate_async.parameter_sync_step"
SWITCH = {"trainer.v1.separate_async.hybrid_rollout.enable_switch": True}
ROLLOUTS = {"actor_rollout_ref.rollout.n": 4}
SERVER = {"step_scorer.kind": "server"}
POOL = {"reward.reward_model.enable": True, "reward.reward_model.enable_resource_pool": True}
OF_VERL = {"trainer.v1.trainer_mode": "sync", "pspo.on_failure": "zero"}
UNPRICED = {"pspo.accumulation.mode": "none", "pspo.shaping.name": "none"}
EIGHT = {"trainer.n_gpus_per_node": 8}
TWO = {"trainer.n_gpus_per_node": 2}
ARGUMENTS = "reward.custom_reward_function.reward_kwargs"
FRACTION = {ARGUMENTS: {"code_reward": "fraction"}, "prm.update_mode": "after"}
PARALLEL = {f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": 2, "prm.engine.ulysses_sequence_parallel_size": 2}

FINE = [
    ("gpu", {**TWO, **DISTILLED, **PARALLEL}),
    ("gpu", {**TWO, **DISTILLED, "prm.inputs.template": "{prompt} {sibling}"}),
    ("cpu", {**STEPS, CREDIT: "clip", "prime.process.credit_threshold": 0.2}),
    ("cpu", {**STEPS, "prime.steps.splitter": "delimiters", "prime.steps.delimiters": [13, 26]}),
    ("cpu", {**STEPS, "prime.steps.splitter": "pattern", "prime.steps.pattern": r"^So\b"}),
    ("cpu", {"prime.process.reward_lambda": 0.9, "prime.process.discount": 0.0}),
    ("cpu", {**GAE, "prime.outcome.gae_lambda": 0.95}),
    ("gpu", {**EIGHT, **BOTH_GAE}),
    ("cpu", {"prime.outcome.estimator": "remax"}),
    ("cpu", {**FRACTION, "prm.loss": "nca"}),
    ("cpu", {"prime.outcome.estimator": "prm_value", "prime.process.coefficient": 0.0}),
    ("cpu", {"prime.outcome.estimator": "segment", "prime.segments.cuts": "low_probability"}),
    ("cpu", {**CHAIN, POSITION: "step_ends", CREDIT: "min_form"}),
    ("cpu", {**CHAIN, POSITION: "tokens", "prime.process.redistribution": "uniform"}),
    ("cpu", {**CHAIN, SHAPE: "released", "prime.process.accumulation.power": 2.0}),
    ("cpu", {**CHAIN, f"{WEIBULL}.shape": 0.9, f"{WEIBULL}.constant": 1.0}),
    ("cpu", {**STEPS, MODE: "softmin"}),
    ("cpu", {"prime.process.granularity": "turn", CREDIT: "delta"}),
    ("cpu", TOOLS),
    ("cpu", LOOP),
    ("cpu", {"prime.turns.state": "observation", "prime.outcome.estimator": "gigpo_mean"}),
    ("cpu", {"actor_rollout_ref.rollout.n": 1, "prime.filter.enable": False, "prime.outcome.estimator": "reinforce",
             "prime.process.estimator": "reinforce_plus_plus"}),
    ("cpu", {**ANCHOR, **ALONE, "prm.model.path": "/gone"}),
    ("cpu", {**DISTILLED, **ANCHOR, "prime.anchor.fallback": True}),
    ("cpu", {"prm.reference": "kl", f"{ACTOR}.use_kl_loss": True}),
    ("cpu", {"prm.reference": "base", "prm.model.lora_rank": 8}),
    ("cpu", {**REFRESH, "prm.trainable_layers": 0.3}),
    ("cpu", {**JUDGED, "prm.judged_limit": 64}),
    ("cpu", {"prm.replay.batches": 4, **COLOCATE}),
    ("cpu", {"actor_rollout_ref.model.path": "org/model", "data.train_files": "hdfs://somewhere/train.parquet"}),
    ("cpu", {**SEPARATE, **SWITCH}),
    ("cpu", {**COLOCATE, "trainer.v1.separate_async.num_warmup_batches": -1}),
    ("gpu", {**TWO, f"{ACTOR}.ppo_max_token_len_per_gpu": 512, f"{ACTOR}.ulysses_sequence_parallel_size": 2}),
    ("gpu", {**TWO, "critic.ppo_max_token_len_per_gpu": 512}),
    ("pspo", {"algorithm.adv_estimator": "reinforce_plus_plus", "pspo.accumulation.reward_position": "step_ends"}),
    ("pspo", {**UNPRICED, "pspo.credit": "delta"}),
    # A sum over the response is the same at its last token.
    ("pspo", {**OF_VERL, **UNPRICED, "algorithm.adv_estimator": "grpo", **ROLLOUTS}),
    ("pspo", {**SERVER, **POOL}),
    # Probabilities need no sigmoid before logarithms.
    ("scored", {CREDIT: "sum", MODE: "geometric", SHAPE: "weibull"}),
    ("scored", {CREDIT: "sum", "prime.process.granularity": "response", "prime.process.normalization": "return_std"}),
    ("scored", {"prime.process.coefficient": 0.0, "prime.selection.remove": 1}),
    ("scored", {"prime.process.reliability_gate": True, **ANCHOR, "prime.anchor.fallback": True}),
    ("scored", COLOCATE),
    ("scored", {**SEPARATE, **SERVER, **POOL}),
]  # fmt: skip

# Configuration, changes, and what is said of them; None: the last key, and that first.
REFUSED = [
    # single values
    ("cpu", {"prm.server.attempts": 3}, None),
    ("cpu", {"prime.variant": "papre"}, None),
    ("cpu", {"prime.filter.lower": 0.9}, None),
    ("cpu", {"prime.filter.upper": 1.5}, None),
    ("cpu", {"prime.filter.max_examined": 1.0}, None),
    ("cpu", {"prime.outcome.coefficient": float("nan")}, None),
    ("cpu", {"prime.outcome.discount": 0.0}, None),
    ("cpu", {"prime.outcome.gae_lambda": 0.9}, None),
    ("cpu", {"prime.process.warm_up_steps": True}, None),
    ("cpu", {"prime.process.accumulation.power": 2.0}, None),
    ("cpu", {"prime.process.accumulation.single_step": "keep"}, None),
    ("cpu", {"prime.label_key": ""}, None),
    ("cpu", {"prime.selection.remove": 3}, None),
    ("cpu", {"prime.selection.most_steps": 1}, None),
    ("cpu", {"prime.steps.pattern": "^So"}, None),
    ("cpu", {"prm.trainable_layers": 1.5}, None),
    ("cpu", {"prm.loss": "dpo"}, None),
    ("cpu", {"prm.reference": "kl"}, None),
    ("cpu", {"prm.reference": "base"}, None),
    ("cpu", {"prm.optim.lr": -1e-6}, None),
    ("cpu", {"actor_rollout_ref.rollout.n": 1}, None),
    ("cpu", {"actor_rollout_ref.rollout.temperature": 0.0}, None),
    ("cpu", {"data.train_batch_size": 0}, None),
    ("cpu", {"data.train_batch_size": 12}, None),
    ("cpu", {"actor_rollout_ref.actor.ppo_mini_batch_size": 32}, None),
    ("cpu", {"algorithm.adv_estimator": "grpo"}, None),
    ("cpu", {"algorithm.adv_estimator": "gae"}, None),
    ("cpu", {"algorithm.lam": 0.95}, None),
    ("cpu", {"algorithm.filter_groups.enable": True}, None),
    ("cpu", {"critic.enable": True}, None),
    ("cpu", {"trainer.use_v1": False}, None),
    ("cpu", {"trainer.v1.trainer_mode": "sync"}, None),
    ("cpu", {"trainer.console": "short"}, None),
    ("cpu", {"actor_rollout_ref.actor.strategy": "fsdp"}, None),
    ("cpu", {"data.train_files": None}, None),
    ("cpu", {"data.val_files": ["/nowhere/val.parquet"]}, None),
    ("cpu", {"prm.model.path": "/nowhere/prm"}, None),
    ("cpu", {"prm.model.path": None}, None),
    ("cpu", {"prm.reference_path": "/nowhere/ref"}, None),
    ("pspo", {"pspo.credit_threshold": 0.5}, None),
    ("pspo", {"step_scorer.actor.num_gpus": 1.5}, None),
    ("pspo", {"step_scorer.actor.num_gpus": 1}, None),
    ("pspo", {"step_scorer.model_path": None}, None),
    ("pspo", {"step_scorer.model_path": "/nowhere"}, None),
    ("pspo", {"step_scorer.device": "cuda:0"}, None),
    ("pspo", {"reward.reward_model.enable": True}, None),
    ("pspo", {"trainer.v1.trainer_mode": "prime_sync"}, None),
    ("pspo", {"trainer.use_v1": False}, None),
    ("pspo", {"reward.reward_manager.name": "naive"}, None),
    ("pspo", {"algorithm.adv_estimator": "remax"}, None),
    ("pspo", {"algorithm.adv_estimator": "gea"}, None),
    ("pspo", {"critic.strategy": "fsdp"}, None),
    ("pspo", {"ray_kwargs.ray_init.num_cpus": 2}, None),
    ("pspo_in_prime", {"pspo.judge": False}, None),
    ("pspo_in_prime", {"pspo.accumulation.reward_position": "tokens"}, None),
    ("pspo_in_prime", {"pspo.on_failure": "zero"}, None),
    # steps and how they are paid
    ("cpu", {**CHAIN, f"{WEIBULL}.shape": 1.0, f"{WEIBULL}.constant": None}, f"{WEIBULL}.shape=1.0"),
    ("cpu", {**STEPS, MODE: "geometric"}, f"{MODE}=geometric takes logarithms"),
    ("cpu", {**STEPS, MODE: "sum", SHAPE: "weibull"}, f"{SHAPE}=weibull"),
    ("cpu", {**STEPS, MODE: "sum", "prime.process.accumulation.power": 2.0}, "accumulation.power=2.0 takes powers"),
    ("cpu", {**SCORES, SHAPE: "released"}, f"{SHAPE}=released reads the accumulated score"),
    ("cpu", {**CHAIN, CREDIT: "min_form"}, f"{CREDIT}=min_form"),
    ("cpu", {**CHAIN, "prime.process.granularity": "response"}, "prime.process.step_score=sigmoid has no effect with"),
    ("cpu", {**STEPS, CREDIT: "clip"}, "prime.process.credit_threshold=None must be a number"),
    ("cpu", {**STEPS, CREDIT: "strict_min", "prime.process.discount": 0.9}, "prime.process.discount=0.9"),
    ("cpu", {**STEPS, "prime.process.reward_lambda": 0.5}, "prime.process.reward_lambda=0.5 is about tokens"),
    ("cpu", {"prime.process.granularity": "response", "prime.process.redistribution": "last"}, "redistribution=last"),
    ("cpu", {"prime.turns.coefficient": 1.0}, "default_agent_loop=seeded_single_turn_agent has no rewards of turns"),
    ("cpu", {**TOOLS, "prime.turns.field": "turn_scores"}, "tool_agent reports none; set it to tool_rewards"),
    ("cpu", {**TOOLS, f"{ROLLOUT}.multi_turn.max_parallel_calls": 2}, "max_parallel_calls=2; set it to 1"),
    ("cpu", {**TOOLS, f"{ROLLOUT}.n": 1, "prime.filter.enable": False}, "prime.turns.estimator=turn_rloo compares"),
    ("cpu", {**LOOP, TOOL_FILE: None}, f"{TOOL_FILE} is not set: bounded_tool_agent needs tools"),
    ("cpu", {**LOOP, TOOL_FILE: "/gone.yaml"}, f"{TOOL_FILE}=/gone.yaml does not exist"),
    ("cpu", {**LOOP, TOOL_FILE: __file__}, "is no list `tools` of entries with class_name"),
    ("cpu", {**LOOP, f"{ROLLOUT}.multi_turn.format": "hermse"}, "multi_turn.format=hermse is no tool parser of verl"),
    ("cpu", {"prime.turns.step_weight": 2.0}, "step_weight=2.0 has no effect without an estimator of gigpo"),
    ("cpu", {"prime.turns.discount": 0.5}, "prime.turns.discount=0.5 has no effect with"),
    ("cpu", {**STEPS, "prime.steps.splitter": "delimiters", "prime.steps.delimiters": [";", 13]}, "[';', 13] must be"),
    ("cpu", {**STEPS, "prime.steps.splitter": "pattern", "prime.steps.pattern": "("}, "prime.steps.pattern='('"),
    # estimators and critics
    ("cpu", {"prime.process.estimator": "masked_step", "prime.process.discount": 0.9}, "prime.process.discount=0.9"),
    ("cpu", {**BOTH_GAE, "prime.process.reward_lambda": 0.5}, "prime.process.reward_lambda=0.5"),
    ("cpu", {**BOTH_GAE, "prime.process.gae_lambda": 0.5}, "must be equal: one critic"),
    ("cpu", {**BOTH_GAE, "prime.process.normalization": "outcome_relative"}, "normalization=outcome_relative compares"),
    ("cpu", {"prime.outcome.estimator": "gae"}, "prime.outcome.estimator=gae needs a critic"),
    ("cpu", {**GAE, "critic.use_dynamic_bsz": False}, "critic.ppo_micro_batch_size_per_gpu is not set"),
    ("cpu", {**GAE, "critic.model.path": "/nowhere/critic"}, "critic.model.path: /nowhere/critic does not exist"),
    ("cpu", {**ALONE, "prime.outcome.estimator": "prm_value"}, "prime.outcome.estimator=prm_value reads the PRM"),
    ("cpu", {"prime.outcome.estimator": "segment", "prm.loss": "nca"}, "prime.outcome.estimator=segment"),
    ("cpu", {"prime.process.normalization": "outcome_relative", "prime.outcome.coefficient": 0.0}, "outcome_relative"),
    # sources, gate, and pulls over the vocabulary
    ("cpu", {"prime.process.coefficient": 0.0, "prime.outcome.coefficient": 0.0}, "are both 0"),
    ("cpu", {"prime.process.warm_up_steps": 5, "prime.outcome.coefficient": 0.0}, "prime.process.warm_up_steps > 0"),
    ("cpu", {"prime.process.reliability_gate": True, "prime.outcome.coefficient": 0.0}, "reliability_gate=true needs"),
    ("cpu", {"prime.process.target": "policy"}, "prime.process.discount=1.0 sums up"),
    ("cpu", {"prime.process.form": "kl"}, "prime.process.form=kl is the divergence"),
    ("gpu", {**TWO, **DISTILLED, "prm.update_mode": "after"}, "set prm.update_mode=before (it is after)"),
    ("gpu", {**TWO, **DISTILLED, "actor_rollout_ref.model.use_fused_kernels": True}, "use_fused_kernels=false"),
    ("gpu", {**TWO, **DISTILLED, "trainer.v1.trainer_mode": "prime_separate_async"}, "needs trainer.v1.trainer_mode"),
    ("gpu", {**TWO, **DISTILLED, "prime.process.estimator": "grpo"}, "prime.process.estimator=grpo"),
    ("gpu", {**TWO, **DISTILLED, "prime.outcome.estimator": "prm_value"}, "prime.outcome.estimator=prm_value"),
    ("gpu", {**TWO, **ANCHOR, "distillation.enabled": True}, "distillation.enabled=true"),
    ("cpu", {**ANCHOR, **ALONE, "prime.anchor.fallback": True}, "prime.anchor.fallback=true"),
    # the PRM
    ("cpu", {**REFRESH, "prm.reference_refresh_source": "prm", "prm.model.lora_rank": 8}, "refresh_source=prm"),
    ("gpu", {**EIGHT, **REFRESH, "prm.engine.strategy": "fsdp2", f"{ACTOR}.strategy": "fsdp"}, "=policy copies"),
    ("gpu", {**EIGHT, "prm.engine.model_dtype": "bf16"}, "prm.engine.model_dtype=bf16"),
    ("cpu", {"prm.model.lora_rank": 8, "prm.checkpoint.save_contents": ["model", "hf_model"]}, "prm.checkpoint.save_"),
    ("cpu", {"prm.model.lora_rank": 8, "prm.trainable_layers": 1}, "prm.trainable_layers=1"),
    ("cpu", {**FROZEN_PRM, "prm.bias.enable": True}, "prm.bias.enable=true has no effect"),
    ("cpu", {**JUDGED, "prime.filter.enable": False}, "prime.filter.enable=false, which drops nothing"),
    ("cpu", {**JUDGED, **COLOCATE}, "prm.train_on=judged needs trainer.v1.trainer_mode=prime_sync"),
    ("cpu", {**JUDGED, "skip.rollout_tq.enable": True}, "prm.train_on=judged needs what the filter drops"),
    ("cpu", {"prm.checkpoint.async_save": True}, "checkpoint.async_save=true"),
    ("gpu", {**EIGHT, f"{ACTOR}.use_dynamic_bsz": False}, "prm.micro_batch_size_per_gpu=None must be a whole number"),
    ("gpu", {**EIGHT, f"{ACTOR}.use_dynamic_bsz": False, "prm.use_dynamic_bsz": True},
     f"{ACTOR}.ppo_micro_batch_size_per_gpu is not set"),
    ("cpu", {**FROZEN_PRM, "prm.reference": "policy"}, "give it a hint with prm.inputs.template"),
    ("cpu", {"prm.follow_policy.freq": 1}, "prm.follow_policy is for a PRM that is never trained"),
    ("cpu", {**SELF_TEACHER, "actor_rollout_ref.model.lora_rank": 8}, "prm.follow_policy copies the weights of policy"),
    ("cpu", {**SELF_TEACHER, "prm.teachers": {"maths": "m"}}, "not for prm.teachers"),
    ("cpu", {**SELF_TEACHER, "prm.reference": "policy", "prm.model.path": "other"}, "give it a hint with prm.inputs"),
    ("cpu", {**SELF_TEACHER, "prm.inputs.retokenize": True}, "is for another family than the policy's"),
    ("cpu", {"prm.follow_policy.decay": 0.5}, "prm.follow_policy.decay=0.5 has no effect"),
    ("cpu", {"prm.inputs.template": "The answer is {gold}."}, "prm.inputs.template lacks {prompt}"),
    ("cpu", {"prm.inputs.template": {"maths": "{prompt} {golds}"}}, "prm.inputs.template.maths adds nothing"),
    ("gpu", {**TWO, **DISTILLED, "prm.inputs.retokenize": True}, "prm.inputs.retokenize=true gives other"),
    ("gpu", {**TWO, **DISTILLED, **PARALLEL, "prm.inputs.template": "{prompt} {gold}"}, "needs whole responses on"),
    ("gpu", {**TWO, **DISTILLED, f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": 2}, "prm.engine.ulysses_seq"),
    ("cpu", {"prm.inputs.retokenize": True, "actor_rollout_ref.rollout.multi_turn.enable": True}, "of one turn"),
    ("cpu", {"prm.inputs.retokenize": True, "prm.model.tokenizer_path": "t",
             "actor_rollout_ref.model.tokenizer_path": "t"}, "with the policy's tokenizer; set prm.model"),
    ("cpu", {**ANSWERS, "prm.update_mode": "after"}, "asks a model that is not trained by itself"),
    ("cpu", {**ANSWERS, "prm.reference": "frozen"}, "compares with no reference; set it to none"),
    ("cpu", {**ANSWERS, "prm.inputs.retokenize": True}, "asks prm.model.path in the policy's tokens"),
    ("cpu", {**ANSWERS, "prime.process.answer.template": "so:"}, "prime.process.answer.template must have {gold} once"),
    ("cpu", {**ANSWERS, "prime.process.granularity": "token"}, "prime.process.scorer=answer_likelihood scores steps"),
    ("cpu", {**ANSWERS, "prime.process.target": "policy"}, "see variant=answer_likelihood"),
    ("cpu", SERVED | {"prm.update_mode": "after"}, "scores and is never trained; set prm.update_mode=none"),
    ("cpu", SERVED | {"prm.reference": "frozen"}, "prm.reference=frozen would be a model here"),
    ("cpu", SERVED | {"prm.follow_policy.freq": 1}, "is one model that stays as it is"),
    ("cpu", SERVED | {"actor_rollout_ref.rollout.temperature": 0.7}, "prm.server gives log-probabilities at"),
    ("gpu", TWO | DISTILLED | SERVED, "prm.server gives no distributions"),
    # sizes
    ("gpu", {**EIGHT, "actor_rollout_ref.rollout.n": 3, "prm.mini_batch_size": 4}, "do not divide over 8 data"),
    ("cpu", {"prm.use_dynamic_bsz": False, "prm.micro_batch_size_per_gpu": 5,
             "prm.infer_micro_batch_size_per_gpu": 5}, "not a multiple of the micro-batch of 5"),
    ("gpu", {**TWO, f"{ACTOR}.ulysses_sequence_parallel_size": 2, "prm.max_token_len_per_gpu": 500},
     "prm.max_token_len_per_gpu=500 times ulysses_sequence_parallel_size=2 is less than"),
    ("gpu", {**TWO, **GAE, "critic.ppo_max_token_len_per_gpu": 512}, f"{CRITIC}=512 is less than"),
    ("gpu", {**TWO, **PARALLEL, "actor_rollout_ref.model.override_config.attn_implementation": "sdpa"},
     "prm.model.override_config.attn_implementation=sdpa"),
    ("cpu", {"prm.model.use_fused_kernels": True, "prm.model.fused_kernel_options.impl_backend": "triton"},
     "prm.model.fused_kernel_options.impl_backend=triton is not one of chunked, torch"),
    ("cpu", {"actor_rollout_ref.model.lora_rank": 8}, "actor_rollout_ref.model.lora.merge must be true"),
    ("pspo", {**SERVER, "step_scorer.address": "127.0.0.1:9"}, "step_scorer.address: http://127.0.0.1:9/c"),
    ("cpu", SERVED, "prm.server: http://127.0.0.1:9/v1/models cannot be reached"),
    # arguments of the reward function
    ("cpu", {ARGUMENTS: {"source": {"poems": "math"}}}, f"{ARGUMENTS}.source is not known; known: sources"),
    ("cpu", {ARGUMENTS: {"sources": {"poems": "verse"}}}, f"{ARGUMENTS}: no task 'verse'"),
    ("cpu", {ARGUMENTS: {"modules": ["no_such_module"]}}, f"{ARGUMENTS}.modules: No module named 'no_such_module'"),
    ("cpu", {**FRACTION, "prm.loss": "kto"}, "prm.loss=kto takes 0 and 1 only"),
    # asynchronous modes
    ("cpu", {**COLOCATE, "trainer.v1.colocate_async.num_warmup_batches": -1}, "num_warmup_batches=-1"),
    ("cpu", {**COLOCATE, "trainer.v1.sampler.max_off_policy_threshold": 0}, "max_off_policy_threshold=0"),
    ("cpu", {**COLOCATE, "trainer.v1.sampler.max_off_policy_strategy": "keep"}, "max_off_policy_strategy='keep'"),
    ("cpu", {**COLOCATE, "skip.rollout_tq.enable": True}, "skip.rollout_tq.enable=true"),
    ("cpu", {**COLOCATE, "prime.outcome.estimator": "remax"}, "prime.outcome.estimator=remax"),
    ("cpu", {**SEPARATE, SYNC_STEP: 0}, f"{SYNC_STEP}=0 must be"),
    ("cpu", {**SEPARATE, "data.train_batch_size": 24}, "data.train_batch_size=24 must be 16"),
    ("cpu", {**SEPARATE, "prm.mini_batch_size": 16}, "prm.mini_batch_size=16 is above the 8 prompts of an update"),
    ("cpu", {**SEPARATE, "actor_rollout_ref.rollout.nnodes": 0}, "actor_rollout_ref.rollout.nnodes=0"),
    ("cpu", {**SEPARATE, "actor_rollout_ref.rollout.tensor_model_parallel_size": 4}, "not a multiple of the 4 devices"),
    ("cpu", {**SEPARATE, "actor_rollout_ref.rollout.checkpoint_engine.backend": "naive"}, "backend=naive"),
    ("cpu", {**SEPARATE, "ray_kwargs.ray_init.num_gpus": 1}, "ray_kwargs.ray_init.num_gpus=1"),
    ("cpu", {**SEPARATE, "ray_kwargs.ray_init.num_cpus": 8}, "ray_kwargs.ray_init.num_cpus=8: verl reserves 9 logical"),
    ("cpu", {**SEPARATE, **SWITCH, "actor_rollout_ref.hybrid_engine": False}, "actor_rollout_ref.hybrid_engine=true"),
    # PSPO-WRS
    ("pspo", {"pspo.outcome_coefficient": 1, "pspo.judge": False}, "pspo.outcome_coefficient=1.0 needs verdicts"),
    ("pspo_gpu", {"step_scorer.device": "cpu", "step_scorer.actor.num_gpus": 0.5}, "num_gpus=0.5 reserves GPUs"),
    ("pspo", SERVER, "step_scorer.address is not set"),
    ("pspo", {**SERVER, "step_scorer.address": "a:1", "step_scorer.actor.cpu_threads": 2}, None),
    ("pspo", {**SERVER, **POOL, "reward.reward_model.model_path": "/other"}, "reward.reward_model.model_path=/other"),
    ("pspo", {**SERVER, **POOL, "reward.custom_reward_function.path": None}, "reward.custom_reward_function.path"),
    ("pspo", {**OF_VERL, "pspo.on_failure": "drop"}, "trainer.v1.trainer_mode=pspo_sync"),
    ("pspo", {**OF_VERL, **UNPRICED}, "pspo.accumulation.mode=none pays within"),
    ("pspo", GRPO, "actor_rollout_ref.rollout.n=1: algorithm.adv_estimator=grpo"),
    ("pspo", {**GRPO, "pspo.accumulation.reward_position": "step_ends", **ROLLOUTS}, "=step_ends: "),
    ("pspo", {"critic.use_dynamic_bsz": False}, "critic.ppo_micro_batch_size_per_gpu is not set"),
    ("pspo_in_prime", {"reward.reward_manager.name": "naive_with_prompt"}, "the section pspo is read with"),
    # a step scorer in place of the implicit PRM
    ("scored", {"prime.process.form": "kl"}, None),
    ("scored", {"prime.process.form": "sign_preserving"}, None),
    ("scored", {"prime.process.step_score": "sigmoid"}, None),
    ("scored", {"prime.process.noise_per_token": 0.0}, None),
    ("scored", {"prime.outcome.estimator": "prm_value"}, None),
    ("scored", {"prime.outcome.estimator": "segment"}, None),
    ("scored", {"prm.enable": True}, None),
    ("scored", {"prime.process.scorer": "implicit_prm"}, "naive_with_step_scores: prime.process.scorer=implicit_prm"),
    ("scored", {"reward.reward_manager.name": "naive_with_prompt"}, None),
    ("scored", {"reward.reward_manager.name": "pspo_wrs"}, None),
    ("scored", {"step_scorer": None}, "naive_with_step_scores needs the section step_scorer"),
    ("scored", {"step_scorer.model_path": None}, None),
    ("scored", {"step_scorer.actor.num_gpus": 1}, None),
    ("scored", SERVER, "step_scorer.address is not set"),
    ("scored", {"step_scorer.architecture": "token_classification", "step_scorer.model_path": "/nowhere"}, None),
    ("cpu", {"prime.process.scorer": "step_scorer"}, "granularity=token: prime.process.scorer=step_scorer"),
    ("gpu", {**TWO, "step_scorer": {}}, "the section step_scorer is read by nothing"),
    ("pspo_in_prime", {"pspo": None}, "reward.reward_manager.name=pspo_wrs needs the section pspo; use --config-name"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), FINE)
def test_combinations_that_work(problems_of, name, changes):
    assert problems_of(changes, name) == []


@pytest.mark.parametrize(("name", "changes", "said"), REFUSED)
def test_values_and_combinations_that_cannot_work(problems_of, name, changes, said):
    problems, key = problems_of(changes, name), list(changes)[-1]
    named = [one for one in problems if (said in one if said else one.startswith((f"{key}=", f"{key}:", f"{key} ")))]
    assert named, problems


def test_a_pull_on_megatron_which_has_no_such_engine_is_refused_in_words():
    words = ["model_engine=megatron", "actor_rollout_ref.model.path=none", "prm.inputs.template='{prompt} {sibling}'"]
    problems = check_config(compose_config("prime_trainer", words))
    wanted = "prime.process.form=kl needs actor_rollout_ref.actor.strategy=fsdp or fsdp2"
    assert any(wanted in said for said in problems)


def test_problems_of_all_sections_are_reported_together(problems_of):
    problems = problems_of({"prime.filter.lower": 0.9, "prm.beta": -1, "prm.epochs": 0, "trainer.nnodes": 0})
    assert {problem.split("=")[0] for problem in problems} == {
        "prime.filter.lower", "prm.beta", "prm.epochs", "trainer.nnodes",
    }  # fmt: skip


def test_the_cpu_configuration_needs_the_platform_variable(problems_of, monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ, "VERL_PLATFORM": "cuda"})
    assert any("needs the environment variable VERL_PLATFORM=cpu" in problem for problem in problems_of())


# ---- files ---------------------------------------------------------------------------------------------------------

DAPO = {"reward.reward_manager.name": "dapo"}


def train_on(path, **columns):
    return {"data.train_files": write_parquet(path, **columns)}


def text_file(path):
    path.write_text("prompt,answer\n")
    return {"data.train_files": str(path)}


def prm_of(path, **config):
    return {"prm.model.path": write_model(path, **config), "prm.reference": "policy"}


def other_vocabulary(path):
    return prm_of(path, tokens=("a", "c", "b"))


def gold(path, text):
    return train_on(path, data_source="math", reward_model={"ground_truth": text})


def hint(text):
    return {"prm.inputs.template": "{prompt} " + text}


def fused_prm(path, strategy, tied):
    model = write_model(path, tie_word_embeddings=tied)
    kernels = {"prm.model.use_fused_kernels": True, "prm.model.fused_kernel_options.impl_backend": "triton"}
    return {**EIGHT, **kernels, "actor_rollout_ref.model.path": model, "prm.engine.strategy": strategy}


def step_rm_of(path, id2label=ID2LABEL, described=True):
    folder = Path(write_step_rm(path, id2label))
    if not described:
        (folder / FILE).unlink()
    return {"step_scorer.model_path": str(folder)}


# Configuration, changes from a path that is free, and the one problem; empty where there is none.
FILES = [
    ("cpu", lambda path: train_on(path, n_rows=0), " has no rows"),
    ("cpu", lambda path: train_on(path, reward_model=None), "has no column 'reward_model'; it has prompt, data_source"),
    ("cpu", text_file, " cannot be read as parquet"),
    ("cpu", lambda path: train_on(path, data_source="poems"), "no verifier for data_source='poems'"),
    ("cpu", lambda path: {**train_on(path, data_source="poems"), ARGUMENTS: {"sources": {"poems": "math"}}}, ""),
    # Another reward function knows its own data.
    ("cpu", lambda path: {**train_on(path, data_source="poems"), "reward.custom_reward_function.path": "own.py"}, ""),
    # Restatements are found only where the prompt is known.
    ("cpu", lambda path: {**train_on(path, data_source="math"), **DAPO}, "name=dapo does not tell the reward function"),
    ("cpu", lambda path: {**train_on(path, data_source="math"), **DAPO, ARGUMENTS: {"math_strictness": "lenient"}}, ""),
    ("cpu", lambda path: {"prm.model.path": str(path.parent), "prm.reference": "policy"}, "has no config.json"),
    ("cpu", lambda path: {"prm.model.path": bare(path / "bare")}, "bare has no tokenizer; save it beside"),
    ("cpu", other_vocabulary, " has another vocabulary than the policy "),
    ("cpu", lambda path: {**other_vocabulary(path), "prm.inputs.retokenize": True}, "lacks a chat template for the"),
    ("cpu", lambda path: {**hint("{gold}"), **gold(path, " ")}, "is not there, or empty, in 2 of 2 rows"),
    ("cpu", lambda path: {**hint("{extra_info.x}"), **train_on(path, data_source="math")}, "column 'extra_info'"),
    ("cpu", lambda path: {**ANSWERS, **gold(path, "")}, "=answer_likelihood: {gold} is not there, or empty, in 2 of 2"),
    ("cpu", lambda path: {**hint("{sibling}{info.acc}"), **train_on(path, data_source="math")}, ""),
    ("cpu", lambda path: prm_of(path, n_embeddings=2), "token ids up to 2, its model only 2"),
    ("cpu", lambda path: prm_of(path, n_embeddings=64), ""),
    ("cpu", lambda path: {**prm_of(path, num_hidden_layers=4), "prm.trainable_layers": 4}, ""),
    ("cpu", lambda path: {**prm_of(path, num_hidden_layers=4), "prm.trainable_layers": 5}, "=5 must be at most 4"),
    # Verl's fused kernels do not reach an output layer of its own on fsdp2.
    ("gpu", lambda path: fused_prm(path, "fsdp2", tied=False), "prm.model.fused_kernel_options.impl_backend=triton"),
    ("gpu", lambda path: fused_prm(path, "fsdp2", tied=True), ""),
    ("gpu", lambda path: fused_prm(path, "fsdp", tied=False), ""),
    ("pspo", lambda path: step_rm_of(path, None), "has no label map"),
    ("pspo", lambda path: step_rm_of(path, {0: "no", 1: "yes"}), "has 2 labels (no, yes), a step reward model has"),
    ("pspo", lambda path: step_rm_of(path, {0: "a", 1: "b", 2: "c"}), "the labels a, b, c, which are not -1, 0 and 1"),
    ("pspo", lambda path: step_rm_of(path, described=False), "has no prime_ext_step_rm.json"),
    ("pspo", lambda path: {**step_rm_of(path, described=False), "step_scorer.pair_format": {"layout": "text"}}, ""),
    # Gold answers are needed only where they count.
    ("pspo", lambda path: train_on(path, data_source=None, reward_model=None), ""),
    (
        "pspo",
        lambda path: {**train_on(path, data_source=None), "pspo.outcome_coefficient": 0.5},
        "column 'data_source'",
    ),
    ("pspo", lambda path: train_on(path, data_source="poems"), "data_source='poems'"),
    ("pspo", lambda path: {**train_on(path, data_source="poems"), "pspo.judge": False}, ""),
]


@pytest.mark.parametrize(("name", "changes", "said"), FILES)
def test_files_are_read_before_anything_starts(problems_of, tmp_path, name, changes, said):
    problems = problems_of(changes(tmp_path / "new.parquet"), name)
    assert any(said in problem for problem in problems) if said else problems == [], problems


def test_code_rewards_need_a_sandbox(problems_of, tmp_path, monkeypatch):
    code = train_on(tmp_path / "code.parquet", data_source="apps")
    assert problems_of(code) == []
    weak = dataclasses.replace(find_protection(), system_calls=False)
    monkeypatch.setattr("prime_ext.verifiers.sandbox.find_protection", lambda: weak)
    (problem,) = problems_of(code)
    assert problem.startswith("code rewards need a sandbox, and this machine has none: no system call filter")
    assert problems_of() == []


# ---- the command ---------------------------------------------------------------------------------------------------


def test_a_configuration_that_does_not_compose_is_one_line():
    config, (problem,) = preflight("prime_trainer_cpu", ["prime.filtre.lower=0.1"])
    assert config is None and "prime.filtre" in problem and "\n" not in problem


MAIN = """
from prime_ext import train
try:
    train.main()
finally:
    from verl.utils.device import get_device_name
    print("device:", get_device_name())
"""


def test_the_command_prints_one_line_per_problem_and_exits_with_2_before_ray_starts(tmp_path):
    """And is on the CPU itself: composing imports verl, which settles on a platform."""
    command = [sys.executable, "-c", MAIN, "--config-name=prime_trainer_cpu", "prime.filter.lower=0.9"]
    command += ["data.train_files=/nowhere/a.parquet", "actor_rollout_ref.model.path=/nowhere/m"]
    environment = {key: value for key, value in os.environ.items() if key != "VERL_PLATFORM"}
    environment["RAY_TMPDIR"] = str(tmp_path)
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    lines = [line for line in done.stderr.splitlines() if line.startswith("prime_ext: ")]
    assert done.returncode == 2 and done.stdout.endswith("device: cpu\n"), done.stderr[-2000:]
    for key in ("prime.filter.lower=", "data.train_files:", "data.val_files:", "actor_rollout_ref.model.path:"):
        assert sum(line.startswith(f"prime_ext: {key}") for line in lines) == 1, (key, lines)
    assert "Traceback" not in done.stderr and "VERL_PLATFORM" not in "".join(lines)
    assert not list(tmp_path.iterdir()), "a refused run leaves nothing behind"


# ---- what settings say of algorithms -------------------------------------------------------------------------------


# What the settings say without torch, and what the algorithms say.
SAID = {
    "losses": (settings.LOSSES, PRM_LOSSES),
    "losses with scores": (settings.LOSSES_THAT_NEED_SCORES, [x for x in PRM_LOSSES if PRM_LOSSES[x].needs_scores]),
    "losses of hard labels": (
        settings.LOSSES_OF_HARD_LABELS,
        [x for x, one in PRM_LOSSES.items() if not one.allows_soft_labels],
    ),
    "estimators": ({*reward_settings.OUTCOME_ESTIMATORS, *reward_settings.PROCESS_ESTIMATORS}, ESTIMATORS),
    "group estimators": (reward_settings.GROUP_ESTIMATORS, [x for x, entry in ESTIMATORS.items() if entry.uses_groups]),
    # The last one is a running factor on the advantage and no function of a batch.
    "normalizations": (reward_settings.NORMALIZATIONS, [*normalization.NORMALIZATIONS, "outcome_relative"]),
    "splitters": (reward_settings.TEXT_SPLITTERS, SPLITTERS),
    "credits": (chain_settings.CREDITS, step_credit.CREDITS),
    "accumulations": (chain_settings.ACCUMULATIONS, ["none", *accumulation.MODES]),
    "positive": (chain_settings.ACCUMULATIONS_OF_POSITIVE_SCORES, accumulation.MODES_OF_POSITIVE_SCORES),
    "shapes": (chain_settings.SHAPES, shaping.SHAPES),
    "shapes of the score": (chain_settings.SHAPES_OF_THE_SCORE, shaping.SHAPES_OF_THE_SCORE),
    "single steps": (chain_settings.SINGLE_STEPS, chain_reward.SINGLE_STEPS),
    "reward positions": (chain_settings.REWARD_POSITIONS, process_shaping.REWARD_POSITIONS),
    "step scores": (chain_settings.STEP_SCORES, accumulation.STEP_SCORES),
}


@pytest.mark.parametrize("name", SAID)
def test_what_the_settings_say_of_the_algorithms_is_what_they_say(name):
    ours, theirs = SAID[name]
    assert set(ours) == set(theirs)


@pytest.mark.parametrize("credit", chain_settings.CREDITS)
def test_what_the_settings_say_of_credits_with_shares(credit):
    shares = credit in chain_settings.CREDITS_WITH_SHARES
    with nullcontext() if shares else pytest.raises(ValueError, match="has no shares of one reward"):
        step_credit.StepCredit(credit).shares(torch.ones(1, 2), torch.ones(1, 2))


def test_which_of_verls_estimators_tell_tokens_apart():
    """Moving a reward inside of a response changes the advantage of exactly these."""
    assert not {*pspo_settings.TOKEN_ESTIMATORS} & {*pspo_settings.GROUP_ESTIMATORS}
    mask_BT = torch.ones(4, 3)
    late_BT = torch.zeros(4, 3)
    late_BT[:, 2] = torch.tensor([1.0, 0.5, 0.25, 0.0])
    early_BT = late_BT.flip(1)
    index = np.array(["a", "a", "b", "b"])
    others = {"response_mask": mask_BT, "config": AlgoConfig(gamma=0.9), "index": index}
    of_gae = {"response_mask": mask_BT, "values": torch.full((4, 3), 0.1), "gamma": 1.0, "lam": 0.95}
    for name in (*pspo_settings.TOKEN_ESTIMATORS, *pspo_settings.GROUP_ESTIMATORS):
        estimate, arguments = ADV_ESTIMATOR_REGISTRY[name], of_gae if name == "gae" else others
        late, early = (estimate(token_level_rewards=x.clone(), **arguments)[0] for x in (late_BT, early_BT))
        assert torch.allclose(late, early) == (name in pspo_settings.GROUP_ESTIMATORS), name


def test_a_tool_whose_class_is_gone_is_named(problems_of, tmp_path):
    (tmp_path / "tools.yaml").write_text(
        "tools: [{class_name: prime_ext.tasks.calculator_tool.Calculator, config: {}}]"
    )
    (problem,) = problems_of({**LOOP, TOOL_FILE: str(tmp_path / "tools.yaml")})
    assert "class_name prime_ext.tasks.calculator_tool.Calculator cannot be imported: module" in problem
