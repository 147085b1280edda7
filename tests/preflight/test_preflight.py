# SPDX-License-Identifier: Apache-2.0
"""Runs that cannot work, and no others, are refused early, in one line that names the key."""

import dataclasses
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf, open_dict
from tokenizers import Tokenizer, models, pre_tokenizers
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

from prime_ext import extend, names, train
from prime_ext.algorithms import accumulation, shaping
from prime_ext.algorithms.estimators import ESTIMATORS, RewardSource
from prime_ext.algorithms.prm_losses import PRM_LOSSES
from prime_ext.config.checks import SettingsError
from prime_ext.config.compose import read_defaults
from prime_ext.config.modules import import_for_verl
from prime_ext.config.verl_keys import check_values
from prime_ext.preflight import file_checks as preflight_files
from prime_ext.preflight.check import check_config, check_files, compose_for_verl
from prime_ext.step_rm.description import FILE, Description, PairFormat
from prime_ext.step_rm.labels import ID2LABEL
from prime_ext.step_rm.splitting import SPLITTERS
from prime_ext.tasks import rl_rows
from prime_ext.train import check_metrics_file, prepare_start
from prime_ext.utils.run_store import RunLock
from prime_ext.verifiers import sources
from prime_ext.verifiers.sandbox.client import find_protection
from recipes.tiny_model import write_model as write_tiny_model

# Configurations by a short name.
CONFIGS = {
    "cpu": ("prime_trainer_cpu", ["variant=guarded"]),
    "gpu": ("prime_trainer", ["variant=guarded"]),
    "distilled": ("prime_trainer_cpu", []),
    "paper": ("prime_trainer_cpu", ["variant=paper"]),
    "pspo": ("pspo_trainer_cpu", []),
    "pspo_gpu": ("pspo_trainer", []),
    "scored": ("prime_trainer_cpu", ["variant=step_scorer"]),
    "scored_gpu": ("prime_trainer", ["variant=step_scorer"]),
}


# A token for each message.
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"


def write_model(folder, n_embeddings=8, tokens=("a", "b", "c"), **config):
    folder.mkdir(parents=True)
    config = {
        "model_type": "llama",
        "vocab_size": n_embeddings,
        "tie_word_embeddings": True,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=tokens[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(template))
    return str(folder)


def bare(folder):
    """Write a model without a tokenizer."""
    write_model(folder)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    return str(folder)


PROMPT = [{"role": "user", "content": "x"}]
GOLD = {"ground_truth": "1"}


def write_parquet(path, n_rows=32, **columns):
    values = {"prompt": PROMPT, "data_source": "gsm8k", "reward_model": GOLD, **columns}
    table = pyarrow.table(
        {name: [value] * n_rows for name, value in values.items() if value is not None}
    )
    pyarrow.parquet.write_table(table, path)
    return str(path)


def write_step_rm(folder):
    """Write the part of a step reward model that is read before anything starts."""
    folder.mkdir(parents=True)
    config = {"model_type": "bert", "id2label": ID2LABEL}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / FILE).write_text(Description(PairFormat(), 1.0, (-1, 0, 1)).to_json())
    return str(folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write a model and data that are in order."""
    root = tmp_path_factory.mktemp("files")
    model = write_model(root / "policy")
    data = write_parquet(root / "data.parquet")
    return {"policy": model, "data": data, "step_rm": write_step_rm(root / "step_rm")}


@pytest.fixture(scope="module")
def composed():
    with initialize_config_module("prime_ext.config", version_base=None):
        return {name: pickle.dumps(compose(*words)) for name, words in CONFIGS.items()}


@pytest.fixture(scope="module")
def defaults(composed):
    return {name: read_defaults(pickle.loads(config)) for name, config in composed.items()}


@pytest.fixture
def get_problems(composed, defaults, files, monkeypatch):
    """Return a function that returns the problems of a valid configuration with given changes."""
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setattr(preflight_files, "has_flash_attention", lambda: True)

    def check(changes=None, name="cpu"):
        config = pickle.loads(composed[name])
        good = {
            "data.train_files": files["data"],
            "data.val_files": files["data"],
            "actor_rollout_ref.model.path": files["policy"],
            "data.train_batch_size": 16,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
        }
        if name.startswith(("pspo", "scored")):
            judges = "kind: judge" in OmegaConf.to_yaml((changes or {}).get("step_scorer", {}))
            if not judges:
                good["step_scorer.model_path"] = files["step_rm"]
        with open_dict(config):
            values = {**good, **(changes or {})}
            # Whole sections first.
            for key in sorted(values, key=lambda key: not isinstance(values[key], DictConfig)):
                value = values[key]
                OmegaConf.update(config, key, value, merge=False, force_add=True)
        given = OmegaConf.to_container(config)
        OmegaConf.resolve(config)
        problems = [*check_values(given, OmegaConf.to_container(config), *defaults[name])]
        problems = problems or list(dict.fromkeys([*check_config(config), *check_files(config)]))
        assert all("\n" not in problem for problem in problems)
        return problems

    return check


@pytest.mark.parametrize("name", CONFIGS)
def test_the_configurations_are_accepted_once_files_are_named(get_problems, name):
    assert get_problems({"trainer.n_gpus_per_node": 8 if "gpu" in name else 1}, name) == []


# ---- single keys ---------------------------------------------------------------------------------


def _composed(*words):
    with initialize_config_module("prime_ext.config", version_base=None):
        return compose("prime_trainer_cpu", ["variant=guarded", *words])


def _composed_process(*words):
    return _composed(*words).prime.process


# ---- values and combinations ---------------------------------------------------------------------

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
ENGINE = f"{ROLLOUT}.checkpoint_engine"
VLLM = {f"{ROLLOUT}.name": "vllm"}
TURN_REWARDS = _composed("prime/turns=rewards").prime.turns
STEPS = {"prime.process": _composed_process("prime/process=steps", "chain@prime.process=pspo_wrs")}
MODE = "prime.process.accumulation.mode"
CHAIN = {**STEPS, "prime.process.step_score": "sigmoid"}
TOOL_FILE = f"{ROLLOUT}.multi_turn.tool_config_path"
LOOP = {
    f"{ROLLOUT}.agent.default_agent_loop": "bounded_tool_agent",
    TOOL_FILE: str(Path(__file__).parents[2] / "recipes" / "agent" / "python_tool.yaml"),
}
GAE = {"algorithm.adv_estimator": "gae", "prime.outcome.estimator": "gae"}
DISTILLED = {"prime.process": _composed_process("prime/process=kl"), "prm.update_mode": "before"}
FUSED = {
    "prm.model.use_fused_kernels": True,
    "prm.model.fused_kernel_options.impl_backend": "triton",
}
COLOCATE = {"trainer.v1.trainer_mode": "prime_colocate_async"}
SYNC_STEP = "trainer.v1.separate_async.parameter_sync_step"
SEPARATE = {
    "trainer.v1.trainer_mode": "prime_separate_async",
    SYNC_STEP: 2,
    f"{ROLLOUT}.nnodes": 1,
    f"{ROLLOUT}.n_gpus_per_node": 2,
    f"{ROLLOUT}.checkpoint_engine.backend": "tcp",
    "ray_kwargs.ray_init.num_gpus": 3,
}
SERVER = {"step_scorer": _composed("+step_scorer=server").step_scorer}
JUDGE = {"step_scorer": _composed("+step_scorer=judge").step_scorer}
POOL = {"reward.reward_model.enable": True, "reward.reward_model.enable_resource_pool": True}
OF_VERL = {
    "trainer.v1.trainer_mode": "sync",
    "reward.reward_manager.name": "pspo_wrs",
    "prime.verifier.on_failure": "zero",
}
PLAIN = {"prime.process.accumulation": None, "prime.process.shaping": None}
EIGHT = {"trainer.n_gpus_per_node": 8}
TWO = {"trainer.n_gpus_per_node": 2}
FUNCTION = "reward.custom_reward_function.path"
ARGUMENTS = "reward.custom_reward_function.reward_kwargs"
FRACTION = {ARGUMENTS: {"code_reward": "fraction"}, "prm.update_mode": "after"}
PARALLEL = {
    f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": 2,
    "prm.engine.ulysses_sequence_parallel_size": 2,
}

FINE = [
    ("gpu", {**TWO, **DISTILLED, **PARALLEL}),
    ("gpu", {**EIGHT, **GAE, "prime.process.estimator": "gae"}),
    ("cpu", {"prime.outcome.estimator": "reinforce_plus_plus"}),
    ("cpu", {**CHAIN, "prime.process.accumulation.reward_position": "step_ends"}),
    (
        "cpu",
        {
            "actor_rollout_ref.model.path": "org/model",
            "data.train_files": "hdfs://somewhere/train.parquet",
        },
    ),
    ("cpu", SEPARATE),
    ("cpu", {**FRACTION, "prm.loss": "nca"}),
    # Keys of sections that take any, keys that verl reads without listing them, and other forms of
    # a value.
    ("cpu", {"actor_rollout_ref.model.override_config.a": 1, f"{ROLLOUT}.engine_kwargs.vllm.a": 1}),
    ("cpu", {"ray_kwargs.ray_init.a": 1}),
    (
        "cpu",
        {
            "data.cache_dir": "a",
            "trainer.remove_previous_ckpt_in_save": True,
            f"{ROLLOUT}.server.timeout": 5,
        },
    ),
    ("cpu", {"data.seed": None, "trainer.logger": "console", f"{ROLLOUT}.temperature": 1}),
    ("pspo", {**OF_VERL, **PLAIN, "algorithm.adv_estimator": "grpo", f"{ROLLOUT}.n": 4}),
    ("pspo", {**OF_VERL, "algorithm.adv_estimator": "gae"}),
    ("scored", {**SEPARATE, **SERVER, **POOL}),
]

# Configuration, changes, and what is said of them; None: the last key, and that first.
REFUSED = [
    # single values
    ("cpu", {"prime.filter.lower": 0.9}, None),
    ("cpu", {"prm.beta": "high"}, "prm.beta must be a valid number, got 'high'"),
    # keys that nothing reads
    ("cpu", {"trainer.sav_freq": 1},
     "nothing reads trainer.sav_freq=1; did you mean trainer.save_freq?"),
    ("cpu", {"reward.custom_reward_function.arguments": 1}, "arguments=1; there is name, path"),
    ("cpu", {f"{ROLLOUT}.temperature": 0.0}, None),
    ("cpu", {"data.train_batch_size": 12}, None),
    ("cpu", {"algorithm.adv_estimator": "grpo"}, None),
    ("cpu", {"data.train_files": None}, None),
    # verl's own keys: those that it reads no more, types, choices, names
    ("cpu", {"custom_reward_function.path": "f.py"},
     "read any more; set reward.custom_reward_function.path"),
    ("cpu", {"data.max_response_length": "abc"}, None),
    ("cpu", {"trainer.logger": ["consle"]}, "got 'consle'; did you mean console?"),
    ("cpu", {"prm.optim": None}, "prm.optim must be a section with keys such as"),
    ("cpu", {"prm.optim.lr": math.nan}, None),
    ("cpu", {f"{ROLLOUT}.max_model_len": 10}, "max_model_len=10 leaves no room for a response"),
    ("pspo", {"reward.reward_manager.name": "naive"}, None),
    *(
        (kind, {f"{ROLLOUT}.trace.backend": "mlflow"}, "trace.backend=mlflow has no effect")
        for kind in ("cpu", "pspo")
    ),
    ("cpu", {"transcripts.every": -1}, "transcripts.every must be greater than or equal to 0"),
    ("pspo", {"transcripts.prompts": 0}, "transcripts.prompts must be greater than or equal to 1"),
    # rewards
    ("cpu", {"prime.outcome.estimator": "opoo"}, "turn_rloo; did you mean opo?"),
    ("cpu", {"prime.process": None, "prime.outcome.coefficient": 0.0}, "nothing to learn from"),
    ("cpu", {"prime.outcome.estimator": "gdpo"},
     "prime.outcome.estimator=gdpo needs more than verl's V1 trainer"),
    ("cpu", STEPS, f"{MODE}=geometric takes logarithms"),
    ("cpu", {**STEPS, MODE: "mean", "prime.process.accumulation.power": 2.0},
     "prime.process.accumulation.power=2.0 takes powers of scores"),
    ("cpu", {**STEPS, MODE: "mean"},
     "prime.process.shaping.name=weibull: negative scores would gain by a bad length"),
    ("cpu", {"prime.turns": TURN_REWARDS},
     "default_agent_loop=seeded_single_turn_agent has no rewards of turns"),
    ("cpu", {**LOOP, "prime.turns": {**TURN_REWARDS, "field": "turn_scores"}},
     "bounded_tool_agent reports none; set it to tool_rewards"),
    ("cpu", {f"{ROLLOUT}.agent.default_agent_loop": "seeded_environment_agent",
             "prime.turns": TURN_REWARDS},
     "seeded_environment_agent calls no tools; set it to turn_scores or turn_progress"),
    ("cpu", {"prime.filter.lower": 1.0, "prime.filter.upper": 1.0}, "rollouts are all alike"),
    ("cpu", {"prime.filter.lower": 0.0, "prime.filter.upper": 0.0}, "rollouts are all alike"),
    ("cpu", {"prime.outcome.estimator": "gae"}, "prime.outcome.estimator=gae needs a critic"),
    ("cpu", {"prime.outcome.estimator": "maxrl", "algorithm.use_kl_in_reward": True},
     "prime.outcome.estimator=maxrl divides by a mean of rewards"),
    ("cpu", {"prime.outcome.coefficient": 0.0}, "prime.process.gate weighs rewards by outcomes"),
    ("gpu", {**TWO, **DISTILLED, "prm.update_mode": "after"},
     "set prm.update_mode=before (it is after)"),
    ("gpu", {**TWO, **DISTILLED, "actor_rollout_ref.model.use_fused_kernels": True},
     "use_fused_kernels=false"),
    # agent loops
    ("cpu", {**LOOP, TOOL_FILE: None}, f"{TOOL_FILE} is not set: bounded_tool_agent needs tools"),
    # the PRM
    ("cpu", {"prm.reference": "base"}, None),
    ("gpu", {**EIGHT, "prm.engine.model_dtype": "bf16"}, "prm.engine.model_dtype=bf16"),
    ("cpu", {"prm": _composed("variant=paper", "prm=frozen").prm, "prm.reference": "policy"},
     "is the policy itself"),
    # sizes and kernels
    ("gpu", {**EIGHT, f"{ROLLOUT}.n": 3, "prm.mini_batch_size": 4}, "do not divide over 8 data"),
    ("gpu", {**TWO, "prm.max_token_len_per_gpu": 500},
     "prm.max_token_len_per_gpu=500 is less than"),
    ("gpu", {"trainer.n_gpus_per_node": 1}, "prm.engine.strategy: fsdp does not shard on one GPU"),
    ("cpu", FUSED,
     "prm.model.fused_kernel_options.impl_backend=triton is not one of chunked, torch"),
    # arguments of the reward function
    ("cpu", {ARGUMENTS: {"source": {"poems": "math"}}},
     f"{ARGUMENTS}.source is not known; known: sources"),
    ("cpu", {**FRACTION, "prm.loss": "kto"}, "prm.loss=kto takes 0 and 1 only"),
    # asynchronous modes
    ("cpu", {**COLOCATE, "trainer.v1.sampler.max_off_policy_threshold": 0},
     "max_off_policy_threshold must be"),
    ("cpu", {**SEPARATE, "data.train_batch_size": 24}, "data.train_batch_size=24 must be 16"),
    ("cpu", {**SEPARATE, f"{ROLLOUT}.nnodes": 0},
     "rollout.nnodes=0 with n_gpus_per_node=2: set both above 0"),
    ("cpu", {**SEPARATE, "prm.mini_batch_size": 16},
     "prm.mini_batch_size=16 is above the 8 prompts of an update"),
    # PSPO-WRS and step scorers
    ("scored", {"step_scorer.model_path": None}, None),
    ("scored", {"step_scorer.pair_format": {"x": 1}}, "step_scorer.pair_format.x"),
    ("pspo", SERVER, "step_scorer.address is not set"),
    ("pspo", {**SERVER, "step_scorer.address": "127.0.0.1:9"},
     "step_scorer.address: http://127.0.0.1:9/c"),
    ("pspo", {**SERVER, "step_scorer.response_format": {}}, "classifies no tokens"),
    ("pspo", {**JUDGE, "step_scorer.model": "m"}, "step_scorer.address is missing"),
    ("scored", {**JUDGE, "step_scorer.address": "127.0.0.1:9"}, "step_scorer.model is missing"),
    ("scored", {**JUDGE, "step_scorer.address": "127.0.0.1:9", "step_scorer.model": "m"},
     "step_scorer.address: http://127.0.0.1:9/v1/c"),
    ("pspo", {**OF_VERL, **PLAIN}, "algorithm.adv_estimator=gae reads the positions"),
    ("pspo", {**OF_VERL, "prime.verifier.on_failure": "drop"}, None),
    ("pspo", {**OF_VERL, "prime.outcome.coefficient": 1.0, "prime.filter.enable": True},
     "prime.outcome.coefficient=1.0, prime.filter.enable=true: pspo_wrs and verl's"),
    ("pspo", {**OF_VERL, "prime.anchor": _composed("prime/anchor=ema").prime.anchor},
     "prime.anchor.coefficient="),
    ("pspo", {**OF_VERL, "prime.process.accumulation.reward_position": "step_ends"},
     "prime.process.accumulation.reward_position=step_ends: pspo_wrs and"),
    ("pspo", {**OF_VERL, "algorithm.adv_estimator": "grpo"}, f"{ROLLOUT}.n=1"),
    ("pspo", {**OF_VERL, "reward.reward_manager.name": "naive_with_step_scores"}, "trainer_mode"),
    ("cpu", {**OF_VERL}, "reward.reward_manager.name=pspo_wrs: no method reads step scores"),
    ("pspo_gpu", {"step_scorer.device": "cpu", "step_scorer.actor.num_gpus": 0.5},
     "num_gpus=0.5 reserves GPUs"),
    ("cpu", {"reward.reward_manager.name": "naive_with_step_scores"},
     "needs the section step_scorer"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), FINE)
def test_combinations_that_work(get_problems, name, changes):
    assert get_problems(changes, name) == []


@pytest.mark.parametrize(("name", "changes", "said"), REFUSED)
def test_values_and_combinations_that_cannot_work(get_problems, name, changes, said):
    problems = get_problems(changes, name)
    key = list(changes)[-1]
    named = [
        one
        for one in problems
        if (said in one if said else one.startswith((f"{key}=", f"{key}:", f"{key} ")))
    ]
    assert named, problems


# ---- files ---------------------------------------------------------------------------------------

TEMPLATE_OF_RECIPE = Path(__file__).parents[2] / "recipes" / "pspo_wrs" / "question_answer.jinja"
OWN_TEMPLATE = {
    "actor_rollout_ref.model.custom_chat_template": TEMPLATE_OF_RECIPE.read_text().strip()
}
TOLD = {
    "actor_rollout_ref.model.custom_chat_template": (
        "{% for tool in tools or [] %}a b c {% endfor %}x"
    )
}
DAPO = {"reward.reward_manager.name": "dapo"}
TOO_FEW_EPOCHS = {"trainer.total_epochs": 2, "trainer.total_training_steps": 7}
TRAIN = "data.train_files"


def train_on(path, **columns):
    return {"data.train_files": write_parquet(path, **columns)}


def write_lines(path, **columns):
    row = {"prompt": PROMPT, "data_source": "gsm8k", "reward_model": GOLD, **columns}
    path.write_text(f"{json.dumps(row)}\n" * 32)
    return str(path)


def long_prompts(path):
    messages = [{"role": role, "content": "x"} for role in ("system", "user", "user")]
    return {**train_on(path, prompt=messages), "data.max_prompt_length": 2}


def without_template(folder):
    model = write_model(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return model


def own_template_and_long_prompts(path):
    model = without_template(path.with_suffix(""))
    return {**long_prompts(path), "actor_rollout_ref.model.path": model, **OWN_TEMPLATE}


def get_prm(path, **config):
    return {"prm.model.path": write_model(path, **config), "prm.reference": "policy"}


def of_qwen3(path):
    write_tiny_model(path, "qwen3")
    return {"actor_rollout_ref.model.path": str(path), "data.max_prompt_length": 22}


def fused_prm(path):
    model = write_model(path, tie_word_embeddings=False)
    return {**EIGHT, **FUSED, "actor_rollout_ref.model.path": model, "prm.engine.strategy": "fsdp2"}


# The start of an answer comes without being asked for.
NO_JOIN = {
    "actor_rollout_ref.model.custom_chat_template": (
        "{% for message in messages %}{{ message['content'] }}{% endfor %}A:"
    )
}
PLAYS = {f"{ROLLOUT}.agent.default_agent_loop": "environment_agent"}


def play_environment(path, name="number_path", text="At 13, go to 27 (+14).", seed=1, **changes):
    info = {"environment": name, "seed": seed}
    prompt = [{"role": "user", "content": text}]
    rows = {"data_source": f"environment/{name}", "prompt": prompt, "extra_info": info}
    file = write_parquet(path, **rows)
    return {**PLAYS, TRAIN: file, "data.val_files": file, **changes}


CHAT = "data.apply_chat_template_kwargs"
NO_GYM = "" if find_spec("reasoning_gym") else "reasoning-gym is not installed: pip install"
# Configuration, changes from a path that is free, and the one problem; empty where there is none.
FILES = [
    ("cpu", lambda path: train_on(path, n_rows=0), " has no rows"),
    ("cpu", lambda path: train_on(path, reward_model=None),
     "row 1 and 31 more: the row needs the key 'reward_model'"),
    ("cpu", lambda path: train_on(path, prompt="What?"),
     "row 1 and 31 more: prompt must be a valid list, got 'What?'"),
    ("cpu", lambda path: train_on(path, reward_model={"style": "rule"}),
     "reward_model needs the key 'ground_truth'"),
    ("cpu", lambda path: {TRAIN: write_lines(path.with_suffix(".jsonl"), prompt="x")},
     "row 1 and 31 more: "),
    ("cpu", lambda path: {TRAIN: write_lines(path.with_suffix(".jsonl"))}, ""),
    ("cpu", lambda path: {TRAIN: write_parquet(path.with_suffix(".PARQUET"))},
     "that verl reads: .parquet"),
    ("cpu", long_prompts,
     "32 of 32 prompts are longer than data.max_prompt_length=2 (up to 3 tokens)"),
    ("cpu", lambda path: {**long_prompts(path), "data.filter_overlong_prompts": True}, ""),
    # The thoughts that a prompt of Qwen3 begins for the model are six more tokens.
    ("cpu", lambda path: {**of_qwen3(path), f"{CHAT}.enable_thinking": True}, ""),
    ("cpu", lambda path: {**of_qwen3(path), f"{CHAT}.enable_thinking": False},
     "32 of 32 prompts are longer than data.max_prompt_length=22 (up to 26 tokens)"),
    ("cpu", lambda path: {**of_qwen3(path), f"{CHAT}.enable_thinkin": False},
     f"does not read {CHAT}.enable_thinkin; correct the name, or leave it out"),
    # environments
    ("cpu", play_environment, ""),
    ("cpu", lambda path: play_environment(path, text="x"),
     "seed 1 of number_path begins otherwise than its prompt says; write the rows again"),
    ("cpu", lambda path: play_environment(path, "number_pth"),
     "there is no environment 'number_pth'; did you mean number_path?"),
    ("cpu", lambda path: play_environment(path, seed="1"),
     "extra_info must have environment and seed"),
    ("cpu", lambda path: play_environment(
        path, **{f"{ROLLOUT}.agent.default_agent_loop": "single_turn_agent"}),
     "environment/number_path is played by an agent loop"),
    ("cpu", lambda path: {**PLAYS, **train_on(path), "data.val_files": train_on(path)[TRAIN]},
     "environment_agent plays environments, and gsm8k is none"),
    ("cpu", lambda path: play_environment(path, **{TOOL_FILE: LOOP[TOOL_FILE]}),
     "environment_agent calls no tools; leave it out"),
    ("cpu", lambda path: play_environment(path, **NO_JOIN), "cannot add a turn to a dialogue"),
    # Tools are told in the prompt.
    ("cpu", lambda path: {**LOOP, **TOLD, "data.max_prompt_length": 2},
     "longer than data.max_prompt_length=2 (up to ", ),
    ("cpu", lambda path: {**TOLD, "data.max_prompt_length": 2}, ""),
    ("cpu", lambda path: train_on(path, n_rows=3),
     "has 3 usable prompts, fewer than data.train_batch_size=16"),
    ("cpu", lambda path: {**train_on(path), **TOO_FEW_EPOCHS},
     "ends after step 4; set trainer.total_epochs=4"),
    (
        "cpu",
        lambda path: {
            "actor_rollout_ref.model.path": without_template(path / "model"),
            **OWN_TEMPLATE,
        },
        "",
    ),
    ("cpu", own_template_and_long_prompts,
     "32 of 32 prompts are longer than data.max_prompt_length=2 (up to ", ),
    ("cpu", lambda path: train_on(path, data_source="poems"),
     "no verifier for data_source='poems'"),
    (
        "cpu",
        lambda path: {
            **train_on(path, data_source="poems"),
            ARGUMENTS: {"sources": {"poems": "math"}},
        },
        "",
    ),
    ("cpu", lambda path: train_on(path, data_source="reasoning_gym/gcd"), NO_GYM),
    ("cpu", lambda path: train_on(path, data_source="reasoning_gym/puzzle24"),
     NO_GYM or "puzzle24 of reasoning-gym is refused: its scorer pays the constant"),
    # Restatements are found only where the prompt is known.
    ("cpu", lambda path: {**train_on(path, data_source="math"), **DAPO},
     "name=dapo does not tell the reward function"),
    ("cpu", lambda path: {"prm.model.path": str(path.parent), "prm.reference": "policy"},
     "has no config.json"),
    ("cpu", lambda path: {"prm.model.path": bare(path / "bare")},
     "bare has no tokenizer; save it there"),
    ("cpu", lambda path: get_prm(path, tokens=("a", "c", "b")),
     " has another vocabulary than the policy "),
    ("cpu", lambda path: get_prm(path, n_embeddings=2), "token ids up to 2, the model in "),
    # Verl's fused kernels do not reach an output layer of its own on fsdp2.
    ("gpu", fused_prm, "prm.model.fused_kernel_options.impl_backend=triton"),
    # Gold answers are needed only where they count.
    ("pspo", lambda path: train_on(path, data_source=None, reward_model=None), ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "said"), FILES)
def test_files_are_read_before_anything_starts(get_problems, tmp_path, name, changes, said):
    problems = get_problems(changes(tmp_path / "new.parquet"), name)
    assert any(said in problem for problem in problems) if said else problems == [], problems


def test_prompts_are_counted_for_a_downloaded_model_of_the_hub(
    get_problems, files, tmp_path, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--org--policy"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("1a2b")
    changes = {
        **long_prompts(tmp_path / "new.parquet"),
        "actor_rollout_ref.model.tokenizer_path": "org/policy",
    }
    assert get_problems(changes) == []
    shutil.copytree(files["policy"], kept / "snapshots" / "1a2b")
    (problem,) = get_problems(changes)
    assert "32 of 32 prompts are longer than data.max_prompt_length=2" in problem


# The body of a user's reward function, and what is said of it; None: nothing.
REWARD_FUNCTIONS = [
    # Data classes with postponed annotations, and processes, look the module up by name.
    ("return Result(1.0).score", None),
    ("return float(sum(__import__('multiprocessing').Pool(2).map(half, [1, 1])))", None),
    ("return {'score': 1.0, 'acc': 1.0, 3: 4}", "a dict with the key 3; keys must be texts"),
    ("return 1.0", None),
    ("return {'score': True, 'acc': 0.5, 'more': 'x'}", None),
    ("return None",
     "it returned None, and must return a finite number, or a dict with one as score"),
    ("return float('nan')", "it returned nan, and must"),
    ("raise KeyError('gold')", "fails on the first row of data.train_files: "),
    ("__import__('os')._exit(3)", "exit code 3"),
    ("__import__('time').sleep(99)", "more than 5.0 s"),
    ("return {'score': 1}", "returns no 'acc' (score), which prime.label_key names"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "said"), REWARD_FUNCTIONS)
def test_a_reward_function_is_called_on_the_first_row(
    get_problems, tmp_path, monkeypatch, body, said
):
    monkeypatch.setattr("prime_ext.preflight.file_checks.FIRST_CALL_SECONDS", 5.0)
    arguments = "data_source, solution_str, ground_truth, extra_info"
    before = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\n"
        "class Result:\n    score: float\n\ndef half(x):\n    return x / 2\n\n"
    )
    (tmp_path / "score.py").write_text(f"{before}def compute_score({arguments}):\n    {body}\n")
    problems = get_problems({FUNCTION: str(tmp_path / "score.py")})
    assert (
        problems == [] if said is None else [said in problem for problem in problems] == [True]
    ), problems


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "score.py does not exist"),
        ("x = 1", "has no attribute 'compute_score'"),
        ("def compute_score(:", "invalid syntax"),
        ("def compute_score(response, gold): return 1.0",
         "unexpected keyword argument 'data_source'"),
    ],
)  # fmt: skip
def test_a_reward_function_that_cannot_be_called_is_one_line(get_problems, tmp_path, text, said):
    if text is not None:
        (tmp_path / "score.py").write_text(text)
    (problem,) = get_problems({FUNCTION: str(tmp_path / "score.py")})
    assert said in problem


def test_code_rewards_need_a_sandbox(get_problems, tmp_path, monkeypatch):
    code = train_on(tmp_path / "code.parquet", data_source="apps")
    assert get_problems(code) == []
    weak = dataclasses.replace(find_protection(), missing=["no system call filter"])
    monkeypatch.setattr("prime_ext.verifiers.sandbox.client.find_protection", lambda: weak)
    (problem,) = get_problems(code)
    assert problem.startswith(
        "code rewards need a sandbox, and this machine has none: no system call filter"
    )
    assert get_problems() == []


# ---- the command ---------------------------------------------------------------------------------


def test_a_configuration_that_does_not_compose_is_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        prepare_start("prime_trainer_cpu", ["prime.filtre.lower=0.1"])
    (line,) = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("prime_ext: ")
    ]
    assert "prime.filtre" in line


def test_a_metrics_file_of_a_run_elsewhere_is_refused(tmp_path):
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path / "mine")}})
    path = tmp_path / "m.jsonl"
    assert check_metrics_file(config, path) == ""
    path.write_text('{"step": 1, "data": {}}\n')
    assert check_metrics_file(config, path).startswith(
        f"{path} has the metrics of a run in another folder than"
    )
    RunLock(tmp_path / "mine").acquire()
    assert check_metrics_file(config, path) == ""


MAIN = """
from prime_ext import train
try:
    train.main()
finally:
    from verl.utils.device import get_device_name
    print("device:", get_device_name())
"""


@pytest.mark.slow
def test_the_command_prints_one_line_per_problem_before_ray_starts(tmp_path):
    """The command itself runs on the CPU: composing imports verl, which settles on a platform."""
    command = [
        sys.executable,
        "-c",
        MAIN,
        "--config-name=prime_trainer_cpu",
        "prime.filter.lower=0.9",
    ]
    command += ["data.train_files=/nowhere/a.parquet", "actor_rollout_ref.model.path=/nowhere/m"]
    environment = {key: value for key, value in os.environ.items() if key != "VERL_PLATFORM"}
    environment["RAY_TMPDIR"] = str(tmp_path)
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("prime_ext: ")]
    assert done.returncode == 2 and done.stdout.endswith("device: cpu\n"), done.stderr[-2000:]
    for key in (
        "prime.filter.lower=",
        "data.train_files:",
        "data.val_files:",
        "actor_rollout_ref.model.path:",
    ):
        assert sum(line.startswith(f"prime_ext: {key}") for line in lines) == 1, (key, lines)
    assert "Traceback" not in done.stderr and "VERL_PLATFORM" not in "".join(lines)
    assert not list(tmp_path.iterdir()), "a refused run leaves nothing"


def test_check_ends_after_the_checks(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["train", "--check", "prm.beta=1"])
    monkeypatch.setattr("prime_ext.train.prepare_start", lambda *words: words)
    with pytest.raises(SystemExit) as ended:
        train.main()
    assert ended.value.code == 0 and capsys.readouterr().out == "prime_ext: nothing is wrong\n"


def test_extensions_that_cannot_work_are_refused(
    monkeypatch,
):
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "")
    with pytest.raises(
        SettingsError,
        match=r"^modules: no_such_module cannot be imported \(ModuleNotFoundError: No mod",
    ):
        compose_for_verl("prime_trainer_cpu", ["modules=[no_such_module]"])
    with pytest.raises(
        ValueError, match="^'none' is taken; there are gaussian, none, released, weibull$"
    ):
        extend.shaping("none")(torch.sqrt)
    for add, function, message in (
        (
            extend.prm_loss,
            lambda q, mask, rows, beta: q,
            r"of shape \(\) for this trial, got shape \(2, 3\)$",
        ),
        (
            extend.prm_loss,
            lambda q, mask, rows, beta: torch.tensor(1.0),
            "must return a tensor with a gradient$",
        ),
        (
            extend.prm_loss,
            lambda q, mask, rows, beta: q.sum() / 0,
            "returns NaN or infinity for ordinary values$",
        ),
        (
            extend.estimator,
            lambda source, mask, group: source.reward_BT.sum(-1),
            r"\(2, 3\) for .*, got shape \(2,\)$",
        ),
        (extend.shaping, lambda steps: 1.0, r"of shape \(3,\) for this trial, got float$"),
        (extend.verifier, object, r"'mine' has no `async def averify\(self, response, gold\)`$"),
    ):
        with pytest.raises(ValueError, match=message):
            add("mine")(function)


@pytest.mark.parametrize(
    ("body", "said"), [("return True", "got bool"), ("raise KeyError(gold)", "KeyError: '1'")]
)
def test_a_users_verifier_is_tried_on_the_first_row(
    get_problems, tmp_path, monkeypatch, body, said
):
    source = (
        "@extend.verifier('{0}', 'mine/*')\nclass V:\n    async def averify(self, response,"
        " gold):\n        {1}\n"
    )
    name = f"verifier_{len(body)}"
    (tmp_path / f"{name}.py").write_text(
        "from prime_ext import extend\n\n" + source.format(name, body)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", f"prime_ext.plugin,{name}")
    import_for_verl(())
    data = write_parquet(tmp_path / "mine.parquet", data_source="mine/a")
    problems = get_problems({"data.train_files": data, "data.val_files": data})
    assert problems and all(
        f"the verifier '{name}' fails on its first row" in line and said in line
        for line in problems
    )


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda source, mask, group: mask[:, :1],
         "must return a tensor of shape (4, 5), got (4, 1)"),
        (lambda source, mask, group: mask + torch.ones(3), "failed: RuntimeError: The size of"),
        (lambda source, mask, group: mask / 0, "returns NaN or infinity for finite rewards"),
    ],
)  # fmt: skip
def test_errors_of_a_users_estimator_name_it(monkeypatch, function, said):
    """They are as in a trial until a run meets other sizes."""
    monkeypatch.setattr(extend, "ESTIMATORS", {})
    monkeypatch.setattr(names, "ESTIMATORS", {})
    trial = lambda source, mask, group: torch.zeros(2, 3)  # noqa: E731
    calls = iter([trial, function])
    extend.estimator("mine")(lambda *arguments: next(calls)(*arguments))
    mask_BT = torch.ones(4, 5)
    source = RewardSource(mask_BT, mask_BT)
    with pytest.raises(extend.UserFunctionFailed) as error:
        extend.ESTIMATORS["mine"](source, mask_BT, torch.zeros(4))
    assert str(error.value).startswith("the estimator 'mine' ") and said in str(error.value)


def test_verifiers_that_judge_no_row_are_named(get_problems, tmp_path, monkeypatch):
    (tmp_path / "idle_verifier.py").write_text(
        "from prime_ext import extend\n\n@extend.verifier('idle', 'nobodys/*')\nclass V:\n"
        "    async def averify(self, response, gold):\n        return None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sources, "TASKS", dict.fromkeys(sources.BUILT_IN, sources.TASKS["math"]))
    monkeypatch.setattr(extend, "TASKS", sources.TASKS)
    monkeypatch.setattr(rl_rows, "TASKS", sources.TASKS)
    built_in = [source for source in sources._registered if source.task in sources.BUILT_IN]
    monkeypatch.setattr(sources, "_registered", built_in)
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "prime_ext.plugin,idle_verifier")
    import_for_verl(())
    (problem,) = get_problems({"modules": ["idle_verifier"]})
    assert "the verifier 'idle' of your modules judges no row" in problem


# ---- what settings say of algorithms -------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "functions"),
    [
        (names.PRM_LOSSES, PRM_LOSSES),
        ([name for name, traits in names.ESTIMATORS.items() if traits.sources], ESTIMATORS),
        (get_args(names.TextSplitter), SPLITTERS),
        (get_args(names.Accumulation), accumulation.MODES),
        (["none", *names.SHAPES], shaping.SHAPES),
    ],
)
def test_every_name_has_a_function(listed, functions):
    assert set(listed) == set(functions)


def test_which_of_verls_estimators_tell_tokens_apart():
    """Moving a reward inside of a response changes the advantage of exactly these."""
    verls = [name for name, traits in names.ESTIMATORS.items() if traits.in_verl]
    mask_BT = torch.ones(4, 3)
    late_BT = torch.zeros(4, 3)
    late_BT[:, 2] = torch.tensor([1.0, 0.5, 0.25, 0.0])
    early_BT = late_BT.flip(1)
    index = np.array(["a", "a", "b", "b"])
    others = {"response_mask": mask_BT, "config": AlgoConfig(gamma=0.9), "index": index}
    of_gae = {
        "response_mask": mask_BT,
        "values": torch.full((4, 3), 0.1),
        "gamma": 1.0,
        "lam": 0.95,
    }
    for name in verls:
        estimate = ADV_ESTIMATOR_REGISTRY[name]
        arguments = of_gae if name == "gae" else others
        late, early = (
            estimate(token_level_rewards=x.clone(), **arguments)[0] for x in (late_BT, early_BT)
        )
        assert torch.allclose(late, early) == names.ESTIMATORS[name].sums_response, name


def test_tied_weights_reach_a_new_vllm_in_one_bucket(get_problems, tmp_path, monkeypatch):
    sizes = {"num_hidden_layers": 1, "hidden_size": 4096, "intermediate_size": 64}
    tied = write_model(tmp_path / "tied", n_embeddings=50_000, **sizes)
    untied = write_model(tmp_path / "untied", 50_000, tie_word_embeddings=False, **sizes)
    embeddings, layer = 4096 * 50_000, 4 * 4096**2 + 3 * 4096 * 64 + 2 * 4096
    wanted = math.ceil(4 * (2 * embeddings + layer + 4096) / 2**20)
    path, size = "actor_rollout_ref.model.path", f"{ENGINE}.update_weights_bucket_megabytes"

    def check(number, **changes):
        package = tmp_path / number / f"vllm-{number}.dist-info"
        package.mkdir(parents=True, exist_ok=True)
        (package / "METADATA").write_text(f"Name: vllm\nVersion: {number}\n")
        with monkeypatch.context() as patched:
            patched.syspath_prepend(str(package.parent))
            problems = get_problems({**EIGHT, **VLLM, path: tied, **changes}, "gpu")
        return [problem for problem in problems if problem.startswith(size)]

    for number in ("0.29.0", "0.30.0rc1"):
        (problem,) = check(number, **{size: wanted - 1})
        assert f"{size}={wanted - 1} parts the tied embeddings of {tied}" in problem
        assert f"vllm {number} rejects; set it to {wanted}," in problem
        assert check(number, **{size: wanted}) == []
    assert check("0.28.1", **{size: wanted - 1}) == []
    assert check("0.29.0", **{size: wanted - 1, path: untied}) == []
    assert check("0.29.0", **{size: wanted - 1, path: "org/not-here-yet"}) == []
    half = {size: math.ceil(wanted / 2), f"{ACTOR}.fsdp_config.model_dtype": "bf16"}
    assert check("0.29.0", **half) == []
    adapter = {"actor_rollout_ref.model.lora_rank": 8, f"{ROLLOUT}.load_format": "safetensors"}
    assert check("0.29.0", **{size: wanted - 1, **adapter}) == []


def test_a_tool_whose_class_is_gone_is_named(get_problems, tmp_path):
    (tmp_path / "tools.yaml").write_text(
        "tools: [{class_name: prime_ext.verl_adapter.tools.calculator_tool.Calculator, config: {}}]"
    )
    (problem,) = get_problems({**LOOP, TOOL_FILE: str(tmp_path / "tools.yaml")})
    assert (
        "a class_name cannot be imported: module 'prime_ext.verl_adapter.tools.calculator_tool'"
        in problem
    )
