# SPDX-License-Identifier: Apache-2.0
"""Bad input: one line each, which names the key, before Ray or a model starts."""

import dataclasses
import json
import os
import subprocess
import sys
from contextlib import nullcontext

import pyarrow
import pyarrow.parquet
import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf, open_dict
from tokenizers import Tokenizer, models

from prime_ext.algorithms import (
    accumulation,
    chain_reward,
    estimators,
    normalization,
    process_shaping,
    shaping,
    step_credit,
    step_scores,
)
from prime_ext.algorithms.prm_losses import PRM_LOSSES
from prime_ext.config import chain_settings
from prime_ext.config.chain_settings import CREDITS, CREDITS_WITH_A_THRESHOLD
from prime_ext.config.reward_settings import (
    GROUP_ESTIMATORS,
    NORMALIZATIONS,
    OUTCOME_ESTIMATORS,
    PROCESS_ESTIMATORS,
    TEXT_SPLITTERS,
)
from prime_ext.config.settings import LOSSES, LOSSES_OF_HARD_LABELS, LOSSES_THAT_NEED_SCORES
from prime_ext.preflight.check import check_config, check_files
from prime_ext.step_rm.splitting import SPLITTERS
from prime_ext.train import preflight
from prime_ext.verifiers.sandbox import find_protection

GPUS = {"trainer.n_gpus_per_node": 8}
COLUMNS = ("prompt", "data_source", "reward_model")


def write_model(folder, n_embeddings=8, tokens=("a", "b", "c")):
    folder.mkdir(parents=True)
    config = {"model_type": "llama", "vocab_size": n_embeddings, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    Tokenizer(models.WordLevel(vocabulary, unk_token=tokens[0])).save(str(folder / "tokenizer.json"))
    return str(folder)


def write_parquet(path, columns=COLUMNS, n_rows=2, data_source="gsm8k"):
    values = {"data_source": data_source}
    pyarrow.parquet.write_table(pyarrow.table({name: [values.get(name, "x")] * n_rows for name in columns}), path)
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model and a data set that are in order."""
    root = tmp_path_factory.mktemp("files")
    return {"model": write_model(root / "policy"), "data": write_parquet(root / "data.parquet"), "root": root}


@pytest.fixture(scope="module")
def composed():
    with initialize_config_module("prime_ext.config", version_base=None):
        return {name: compose(name, ["variant=guarded"]) for name in ("prime_trainer", "prime_trainer_cpu")}


@pytest.fixture
def problems_of(composed, files, monkeypatch):
    """Checks a configuration that is in order but for the given changes."""
    monkeypatch.setenv("VERL_PLATFORM", "cpu")

    def check(name="prime_trainer_cpu", **changes):
        config = composed[name].copy()
        good = {
            "data.train_files": files["data"],
            "data.val_files": files["data"],
            "actor_rollout_ref.model.path": files["model"],
            "data.train_batch_size": 16,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
        }
        with open_dict(config):
            for key, value in {**good, **changes.pop("changes", {})}.items():
                OmegaConf.update(config, key, value, force_add=True)
        OmegaConf.resolve(config)
        return [*check_config(config), *check_files(config)]

    return check


def test_both_configurations_are_accepted_once_files_are_named(problems_of, composed):
    with initialize_config_module("prime_ext.config", version_base=None):
        composed["default"] = compose("prime_trainer_cpu")
    assert problems_of("default") == []
    assert problems_of("prime_trainer_cpu") == []
    gpus = {"trainer.n_gpus_per_node": 8, "actor_rollout_ref.actor.use_dynamic_bsz": True}
    assert problems_of("prime_trainer", changes=gpus) == []


def test_without_dynamic_batches_a_micro_batch_size_is_wanted(problems_of):
    changes = {"trainer.n_gpus_per_node": 8, "actor_rollout_ref.actor.use_dynamic_bsz": False}
    (problem,) = problems_of("prime_trainer", changes=changes)
    assert problem.startswith("prm.micro_batch_size_per_gpu=None must be a whole number (prm.use_dynamic_bsz=false)")


ACTOR, CRITIC = "actor_rollout_ref.actor", "critic.ppo_infer_max_token_len_per_gpu"
TOO_FEW_TOKENS = "is less than data.max_prompt_length + data.max_response_length = 1024; set it to"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        # The PRM's budgets follow the policy's, and so does that of the rollouts' log-probabilities.
        (
            {f"{ACTOR}.ppo_max_token_len_per_gpu": 512},
            [
                f"{ACTOR}.ppo_max_token_len_per_gpu=512 {TOO_FEW_TOKENS} 1024 or more",
                f"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=512 {TOO_FEW_TOKENS}",
                f"prm.max_token_len_per_gpu=512 {TOO_FEW_TOKENS}",
            ],
        ),
        ({"prm.infer_max_token_len_per_gpu": 1000}, [f"prm.infer_max_token_len_per_gpu=1000 {TOO_FEW_TOKENS}"]),
        (
            {f"{ACTOR}.use_kl_loss": True, "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 1},
            [f"actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=1 {TOO_FEW_TOKENS}"],
        ),
        # Two ranks share a sequence; the PRM's do as the policy's.
        ({f"{ACTOR}.ppo_max_token_len_per_gpu": 512, f"{ACTOR}.ulysses_sequence_parallel_size": 2}, []),
        (
            {f"{ACTOR}.ulysses_sequence_parallel_size": 2, "prm.max_token_len_per_gpu": 500},
            [f"prm.max_token_len_per_gpu=500 times ulysses_sequence_parallel_size=2 {TOO_FEW_TOKENS} 512"],
        ),
        # The one key that verl documents for a critic.
        (
            {
                "critic.ppo_max_token_len_per_gpu": 512,
                "algorithm.adv_estimator": "gae",
                "prime.outcome.estimator": "gae",
            },
            [f"{CRITIC}=512 {TOO_FEW_TOKENS}"],
        ),
        ({"critic.ppo_max_token_len_per_gpu": 512}, []),
    ],
)
def test_a_sequence_of_full_length_fits_into_every_pass(problems_of, changes, said):
    problems = problems_of("prime_trainer", changes={"trainer.n_gpus_per_node": 2, **changes})
    assert len(problems) == len(said), problems
    for problem, expected in zip(problems, said, strict=True):
        assert problem.startswith(expected)


def test_ranks_that_share_a_sequence_need_flash_attention(problems_of):
    sdpa = {"actor_rollout_ref.model.override_config.attn_implementation": "sdpa", "trainer.n_gpus_per_node": 2}
    assert problems_of("prime_trainer", changes=sdpa) == []
    policy, prm = problems_of(
        "prime_trainer",
        changes=sdpa
        | {f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": 2, "prm.engine.ulysses_sequence_parallel_size": 2},
    )
    said = "override_config.attn_implementation=sdpa: with ulysses_sequence_parallel_size=2 every rank would see its"
    assert policy.startswith(f"actor_rollout_ref.model.{said}") and prm.startswith(f"prm.model.{said}")


@pytest.mark.parametrize("adapter", [{"lora_rank": 8}, {"lora_adapter_path": "adapter"}, {"lora.rank": 8}])
def test_an_adapter_wants_an_engine_that_serves_it_or_merged_weights(problems_of, adapter):
    changes = {f"actor_rollout_ref.model.{key}": value for key, value in adapter.items()}
    (problem,) = problems_of(changes=changes)
    assert problem.startswith("actor_rollout_ref.rollout.name=transformers cannot serve LoRA adapters; set actor_roll")
    assert problems_of(changes=changes | {"actor_rollout_ref.model.lora.merge": True}) == []
    assert problems_of(changes=changes | {"actor_rollout_ref.rollout.name": "vllm"}) == []


ONE_KEY = [
    # settings
    ("prime.filter.lower", 0.9, "prime.filter.lower=0.9 is above prime.filter.upper=0.8"),
    ("prime.filter.upper", 1.5, "prime.filter.upper=1.5 must be a number >= 0 and <= 1"),
    ("prime.filter.lower", "low", "prime.filter.lower='low' must be a number"),
    ("prime.filter.oversample", 0.5, "prime.filter.oversample=0.5 must be a number >= 1"),
    ("prime.filter.max_examined", 1.0, "prime.filter.max_examined=1.0 is below prime.filter.oversample=2.0"),
    ("prime.filter.on_exhausted", "stop", "prime.filter.on_exhausted='stop' is not one of error, partial"),
    ("prime.filter.enable", "yes", "prime.filter.enable='yes' must be true or false"),
    ("prime.outcome.coefficient", -1.0, "prime.outcome.coefficient=-1.0 must be a number >= 0"),
    ("prime.outcome.coefficient", float("nan"), "prime.outcome.coefficient=nan must be a number"),
    ("prime.outcome.discount", 0.0, "prime.outcome.discount=0.0 must be a number > 0 and <= 1"),
    ("prime.outcome", None, "prime.outcome=None must be a section with keys"),
    ("prime", None, "prime=None must be a section with keys"),
    ("prime.process.normalization", "rank_max", "'rank_max' is not one of batch_max, return_std, prefix_std, none"),
    ("prime.process.baseline", "mean", "prime.process.baseline='mean' is not one of released, paper"),
    ("prime.process.typo", 1, "unknown key prime.process.typo; known keys: accumulation"),
    ("prime.typo", 1, "unknown key prime.typo"),
    ("prime.whitening", 1, "prime.whitening=1 must be true or false"),
    ("prime.label_key", "", "prime.label_key='' must name a key"),
    ("prime.poll_interval", 0, "prime.poll_interval=0 must be a number > 0"),
    ("prime.verifier.on_failure", "ignore", "prime.verifier.on_failure='ignore' is not one of drop, zero, stop"),
    ("prime.verifier.warn_rate", 2.0, "prime.verifier.warn_rate=2.0 must be a number >= 0 and <= 1"),
    # optimisers
    ("actor_rollout_ref.actor.optim.lr", float("nan"), "actor_rollout_ref.actor.optim.lr=nan must be a number from 0"),
    ("prm.optim.lr", -1e-6, "prm.optim.lr=-1e-06 must be a number from 0 on"),
    ("prm.optim.lr", "1e-6.", "prm.optim.lr=1e-6. must be a number from 0 on"),
    ("prm.typo", 1, "unknown key prm.typo"),
    ("prm.beta", 0.0, "prm.beta=0.0 must be a number > 0"),
    ("prm.loss", "bce", "prm.loss='bce' is not one of ce, bon_acc, bon_rm, dpo, nca, kto, ipvrm"),
    ("prm.loss", "dpo", "prm.loss=dpo compares with the PRM's scores before the update"),
    ("prm.update_mode", "first", "'first' is not one of none, before, after, interleaved, reverse"),
    ("prm.reference", "freeze", "prm.reference='freeze' is not one of frozen, policy"),
    ("prm.mini_batch_size", 2.5, "prm.mini_batch_size=2.5 must be a whole number of prompts >= 1"),
    ("prm.use_dynamic_bsz", False, "prm.micro_batch_size_per_gpu=None must be a whole number"),
    ("prm.use_dynamic_bsz", "no", "prm.use_dynamic_bsz='no' must be true or false"),
    ("prm.max_token_len_per_gpu", None, "prm.max_token_len_per_gpu=None must be a whole number"),
    ("prm.accuracy_freq", -1, "prm.accuracy_freq=-1 must be a whole number >= 0"),
    ("prm.reference", "kl", "prm.reference=kl reads the reference of the policy's KL penalty, which is off; set"),
    ("prm.reference", "base", "switches the PRM's LoRA adapter off, and it has none; set prm.model.lora_rank"),
    # the rest of the configuration
    ("actor_rollout_ref.rollout.n", 1, "rollout.n=1: prime.outcome.estimator=rloo compares the rollouts of a prompt"),
    ("actor_rollout_ref.rollout.n", 1, "rollout.n=1: a single rollout is never inside prime.filter; disable it"),
    ("prime.outcome.estimator", "ppo", "prime.outcome.estimator='ppo' is not one of rloo, grpo, grpo_pooled, dr_grpo"),
    ("prime.outcome.estimator", "rloo_per_token", "prime.outcome.estimator='rloo_per_token' is not one of rloo"),
    ("prime.process.estimator", "remax", "prime.process.estimator='remax' is not one of rloo"),
    ("prime.outcome.trace", 0.9, "prime.outcome.trace=0.9 is read by prime.outcome.estimator=gae only"),
    ("prime.process.granularity", "word", "'word' is not one of token, step, response, prefix_value"),
    (
        "prime.process.credit",
        "min_form",
        "prime.process.credit=min_form is about steps; set prime.process.granul",
    ),
    ("prime.process.credit_threshold", 0.1, "prime.process.credit_threshold=0.1 is read by prime.process.credit=clip"),
    ("prime.process.credit_temperature", 0, "prime.process.credit_temperature=0 must be a number > 0"),
    ("prime.process.step_score", "tanh", "prime.process.step_score='tanh' is not one of none, sigmoid, prefix_sigmoid"),
    ("prime.process.step_score", "sigmoid", "prime.process.step_score=sigmoid is about steps; set prime.process.gran"),
    ("prime.process.step_score_scale", 0, "prime.process.step_score_scale=0 must be a number > 0"),
    ("prime.process.accumulation.mode", "geo", "prime.process.accumulation.mode='geo' is not one of none, sum, mean"),
    ("prime.process.accumulation.mode", "min", "prime.process.accumulation.mode=min is about steps; set prime.process"),
    ("prime.process.accumulation.place", "end", "'end' is not one of last_token, step_ends, tokens"),
    (
        "prime.process.accumulation.place",
        "tokens",
        "prime.process.accumulation.mode=none accumulates nothing; leave",
    ),
    ("prime.process.accumulation.power", 2.0, "prime.process.accumulation.power=2.0 is about an accumulated score"),
    ("prime.process.accumulation.temperature", 0.0, "prime.process.accumulation.temperature=0.0 must be a number > 0"),
    ("prime.process.accumulation.first_weight", "a", "prime.process.accumulation.first_weight='a' must be a number"),
    ("prime.process.accumulation.single_step", "one", "'one' is not one of zero, keep"),
    ("prime.process.accumulation.single_step", "keep", "is read with an accumulation or a shape only; leave it at zer"),
    ("prime.process.accumulation", "geometric", "prime.process.accumulation='geometric' must be a section with keys"),
    ("prime.process.accumulation.wieght", 1.0, "unknown key prime.process.accumulation.wieght; known keys: first_wei"),
    ("prime.process.shaping", "weibull", "prime.process.shaping='weibull' must be a section with keys"),
    ("prime.process.shaping.name", "cosine", "'cosine' is not one of none, weibull, gaussian, released"),
    ("prime.process.shaping.name", "weibull", "prime.process.shaping.name=weibull is about steps; set prime.process"),
    ("prime.process.shaping.weibull.constant", 0.0, "prime.process.shaping.weibull.constant=0.0 must be a number > 0"),
    ("prime.process.shaping.weibull.scale", -8, "prime.process.shaping.weibull.scale=-8 must be a number > 0"),
    ("prime.process.shaping.weibull.lambda", 8, "unknown key prime.process.shaping.weibull.lambda; known keys: consta"),
    ("prime.process.shaping.gaussian.std", 0.0, "prime.process.shaping.gaussian.std=0.0 must be a number > 0"),
    ("prime.process.shaping.released.good", 1.5, "prime.process.shaping.released.good=1.5 must be a number > 0 and"),
    ("prime.process.target", "prm", "prime.process.target='prm' is not one of reference, policy"),
    ("prime.process.target", "policy", "prime.process.discount=1.0: log-probabilities measured against the policy are"),
    ("prime.process.form", "kl", "divergence between policy and PRM, but prime.process.target is reference; set it to"),
    ("prime.process.top_k", 0, "prime.process.top_k=0 must be a whole number >= 1"),
    ("prime.process.clip", 0, "prime.process.clip=0 must be a number > 0"),
    ("prime.anchor.kind", "sma", "prime.anchor.kind='sma' is not one of none, ema"),
    ("prime.anchor.decay", 2, "prime.anchor.decay=2 must be a number >= 0 and <= 1"),
    ("prime.anchor.coefficient", 0, "prime.anchor.coefficient=0 must be a number > 0"),
    ("prime.process.redistribution", "first", "'first' is not one of none, uniform, last"),
    ("prime.process.reward_lambda", 2.0, "prime.process.reward_lambda=2.0 must be a number >= 0 and <= 1"),
    ("prime.process.relative_share", 0, "prime.process.relative_share=0 must be a number > 0"),
    ("prime.process.gate_decay", 1.5, "prime.process.gate_decay=1.5 must be a number >= 0 and <= 1"),
    ("prime.process.gate_start", -0.5, "prime.process.gate_start=-0.5 must be a number >= 0 and <= 1"),
    ("prime.steps.splitter", "words", "prime.steps.splitter='words' is not one of auto, labels"),
    ("prime.steps.splitter", "pattern", "prime.steps.pattern=None with prime.steps.splitter=pattern"),
    ("prime.steps.pattern", "^So", "prime.steps.pattern='^So' with prime.steps.splitter=auto: leave it null"),
    ("prime.segments.cuts", "lines", "prime.segments.cuts='lines' is not one of steps, low_probability"),
    ("prime.selection.remove", -1, "prime.selection.remove=-1 must be a whole number >= 0"),
    ("prime.selection.remove", 3, "prime.selection.remove=3 leaves fewer than 2 of actor_rollout_ref.rollout.n=4"),
    ("prime.selection.most_steps", 1, "prime.selection.most_steps=1 must be a whole number >= 2"),
    ("prime.segments.every", 0, "prime.segments.every=0 must be a whole number >= 1"),
    ("prime.process.estimator", "ppo", "prime.process.estimator='ppo' is not one of rloo"),
    ("prime.process.warm_up_steps", -1, "prime.process.warm_up_steps=-1 must be a whole number >= 0"),
    ("actor_rollout_ref.rollout.n", "four", "actor_rollout_ref.rollout.n='four' must be a whole number >= 1"),
    ("actor_rollout_ref.rollout.temperature", 0.0, "actor_rollout_ref.rollout.temperature=0.0 must be above 0"),
    ("data.train_batch_size", 0, "data.train_batch_size=0 must be a whole number >= 1"),
    ("data.train_batch_size", 12, "data.train_batch_size=12 is not a multiple of"),
    ("actor_rollout_ref.actor.ppo_mini_batch_size", 32, "ppo_mini_batch_size=32 is above data.train_batch_size=16"),
    ("prm.mini_batch_size", 3, "data.train_batch_size=16 is not a multiple of prm.mini_batch_size=3"),
    ("algorithm.adv_estimator", "grpo", "algorithm.adv_estimator=grpo would be computed and thrown away"),
    ("algorithm.adv_estimator", "gae", "builds a critic, but neither prime.outcome.estimator nor prime.process.est"),
    ("prime.outcome.estimator", "gae", "prime.outcome.estimator=gae needs a critic, which verl builds for algorithm."),
    ("algorithm.lam", 0.95, "algorithm.lam=0.95 is not read by PRIME; set prime.outcome.trace and prime.process.trace"),
    ("algorithm.gamma", 0.9, "algorithm.gamma=0.9 is not read by PRIME; set prime.outcome.discount"),
    ("algorithm.filter_groups.enable", True, "use prime.filter instead"),
    ("critic.enable", True, "critic.enable=true builds a critic that PRIME never reads"),
    ("trainer.use_v1", False, "PRIME needs trainer.use_v1=true"),
    ("trainer.v1.trainer_mode", "sync", "trainer.v1.trainer_mode=sync is not one of prime_sync"),
    ("prm.enable", False, "prime.process.coefficient > 0 needs prm.enable=true"),
    ("prm.checkpoint.async_save", True, "checkpoint.async_save=true leaves no moment"),
    ("actor_rollout_ref.actor.checkpoint.async_save", True, "checkpoint.async_save=true leaves no moment"),
    ("trainer.resume_mode", "resume_path", "trainer.resume_from_path=None is not a folder"),
    # CPU
    ("actor_rollout_ref.actor.strategy", "fsdp", "actor_rollout_ref.actor.strategy=fsdp does not work on CPU"),
    ("prm.engine.strategy", "fsdp", "prm.engine.strategy=fsdp does not work on CPU; set it to fsdp2"),
    ("ray_kwargs.ray_init.num_cpus", 4, "ray_kwargs.ray_init.num_cpus=4: verl reserves 5 logical CPUs"),
    ("ray_kwargs.ray_init.num_gpus", 0, "ray_kwargs.ray_init.num_gpus=0: CPU mode needs 1 logical GPU slots"),
    # files
    ("data.train_files", None, "data.train_files is not set"),
    ("data.train_files", "/nowhere/train.parquet", "data.train_files: /nowhere/train.parquet does not exist"),
    ("data.val_files", ["/nowhere/val.parquet"], "data.val_files: /nowhere/val.parquet does not exist"),
    ("data.prompt_key", "question", "has no column 'question'; it has prompt, data_source, reward_model"),
    ("actor_rollout_ref.model.path", "/nowhere/model", "actor_rollout_ref.model.path: /nowhere/model does not exist"),
    ("prm.model.path", "/nowhere/prm", "prm.model.path: /nowhere/prm does not exist"),
    ("prm.reference_path", "/nowhere/ref", "prm.reference_path: /nowhere/ref does not exist"),
    ("prm.model.path", None, "prm.model.path is not set"),
]


@pytest.mark.parametrize("key, value, message", ONE_KEY, ids=[f"{key}={value}" for key, value, _ in ONE_KEY])
def test_a_bad_value_is_named(problems_of, key, value, message):
    problems = problems_of(changes={key: value})
    assert any(message in problem for problem in problems), problems
    assert all("\n" not in problem for problem in problems)


def test_problems_of_both_sections_are_reported_together(problems_of):
    problems = problems_of(changes={"prime.filter.lower": 0.9, "prm.beta": -1})
    assert [problem.split("=")[0] for problem in problems] == ["prime.filter.lower", "prm.beta"]


def test_batch_sizes_must_divide_over_ranks_and_micro_batches(problems_of):
    eight_ranks = {
        "trainer.n_gpus_per_node": 8,
        "actor_rollout_ref.rollout.n": 3,
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
    }
    problems = problems_of("prime_trainer", changes={**eight_ranks, "prm.mini_batch_size": 4})
    assert any(
        "prm.mini_batch_size=4 times rollout.n=3 is 12 rollouts, which do not divide over 8" in p for p in problems
    )
    micro = {
        "prm.use_dynamic_bsz": False,
        "prm.micro_batch_size_per_gpu": 5,
        "prm.infer_micro_batch_size_per_gpu": 5,
    }
    problems = problems_of(changes=micro)
    assert any(
        "prm.mini_batch_size=8 is 32 rollouts per rank, not a multiple of the micro-batch of 5" in p for p in problems
    )


def test_the_cpu_configuration_needs_the_platform_variable(problems_of, monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cuda")
    assert any("needs the environment variable VERL_PLATFORM=cpu" in problem for problem in problems_of())


def test_one_rollout_per_prompt_is_enough_for_estimators_without_groups(problems_of):
    alone = {"actor_rollout_ref.rollout.n": 1, "prime.filter.enable": False}
    plain = {"prime.outcome.estimator": "reinforce", "prime.process.estimator": "reinforce_plus_plus"}
    assert problems_of(changes={**alone, **plain}) == []


def test_the_warm_up_needs_an_outcome(problems_of):
    changes = {"prime.process.warm_up_steps": 5, "prime.outcome.coefficient": 0.0}
    assert any("prime.process.warm_up_steps > 0 needs" in problem for problem in problems_of(changes=changes))


DISTILLED = {"prime.process.form": "kl", "prime.process.target": "policy", "prm.update_mode": "before"}
ANCHOR = {"prime.anchor.kind": "ema"}


def test_a_pull_over_the_vocabulary_is_accepted(problems_of):
    assert problems_of(changes=DISTILLED | ANCHOR | {"prime.anchor.fallback": True}) == []
    alone = {"prime.process.coefficient": 0.0, "prm.enable": False}
    assert problems_of(changes=ANCHOR | alone) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (DISTILLED | {"prm.update_mode": "after"}, "set prm.update_mode=before (it is after)"),
        (DISTILLED | {"actor_rollout_ref.model.use_fused_kernels": True}, "fused kernels of the policy give none; set"),
        (DISTILLED | {"trainer.v1.trainer_mode": "prime_separate_async"}, "trainer_mode=prime_sync or prime_colocate"),
        (
            DISTILLED | {"prime.process.estimator": "grpo"},
            "prime.process.estimator=grpo changes the rewards of sampled tokens, and there are none with "
            "prime.process.form=kl; leave it at rloo, or choose variant=guarded",
        ),
        (DISTILLED | {"prime.outcome.estimator": "prm_value"}, "reads the PRM's rewards, which are not taken with"),
        (
            DISTILLED | {"prm.engine.ulysses_sequence_parallel_size": 2},
            "ulysses_sequence_parallel_size=1 as the policy",
        ),
        (ANCHOR | {"distillation.enabled": True}, "both change the policy's loss; choose one"),
        (
            ANCHOR | {"prime.anchor.fallback": True, "prime.process.reliability_gate": False},
            "fills what the reliability gate leaves out, but there is no gate",
        ),
        (
            ANCHOR | {"prime.anchor.fallback": True, "prime.process.coefficient": 0.0, "prm.enable": False},
            "for the outcome alone add variant=paper, for it with an anchor set prime.anchor.fallback=false",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_pull_over_the_vocabulary_needs(problems_of, changes, said):
    problems = problems_of("prime_trainer", changes={"trainer.n_gpus_per_node": 2, **changes})
    assert any(said in problem for problem in problems), problems


def test_the_gate_needs_an_outcome(problems_of):
    changes = {"prime.process.reliability_gate": True, "prime.outcome.coefficient": 0.0}
    assert any("prime.process.reliability_gate=true needs" in problem for problem in problems_of(changes=changes))


def test_both_coefficients_zero_is_refused(problems_of):
    changes = {"prime.process.coefficient": 0.0, "prime.outcome.coefficient": 0.0}
    assert any("are both 0; one must count" in problem for problem in problems_of(changes=changes))


def test_outcome_only_training_needs_no_prm(problems_of):
    assert problems_of(changes={"prime.process.coefficient": 0.0, "prm.enable": False, "prm.model.path": "/gone"}) == []


# ---- files -------------------------------------------------------------------------------------------------------


def test_an_empty_parquet_file(problems_of, tmp_path):
    path = write_parquet(tmp_path / "empty.parquet", n_rows=0)
    assert problems_of(changes={"data.val_files": path}) == [f"data.val_files: {path} has no rows"]


def test_a_parquet_file_without_a_column(problems_of, tmp_path):
    path = write_parquet(tmp_path / "bare.parquet", columns=("prompt", "data_source"))
    assert problems_of(changes={"data.train_files": [path]}) == [
        f"data.train_files: {path} has no column 'reward_model'; it has prompt, data_source"
    ]


def test_a_file_that_is_no_parquet(problems_of, tmp_path):
    path = tmp_path / "text.parquet"
    path.write_text("prompt,answer\n")
    (problem,) = problems_of(changes={"data.train_files": str(path)})
    assert problem.startswith(f"data.train_files: {path} cannot be read as parquet")


def test_a_folder_that_is_no_model(problems_of, tmp_path):
    (problem,) = problems_of(changes={"prm.model.path": str(tmp_path), "prm.reference": "policy"})
    assert problem == f"prm.model.path: {tmp_path} has no config.json, so it is not a Hugging Face model"


def test_a_prm_with_fewer_layers_than_are_to_be_trained(problems_of, tmp_path):
    other = write_model(tmp_path / "prm")
    config = json.loads((tmp_path / "prm" / "config.json").read_text())
    (tmp_path / "prm" / "config.json").write_text(json.dumps(config | {"model_type": "llama", "num_hidden_layers": 4}))
    assert not problems_of(changes={"prm.model.path": other, "prm.trainable_layers": 4})
    [problem] = problems_of(changes={"prm.model.path": other, "prm.trainable_layers": 5})
    assert problem.startswith("prm.trainable_layers=5 must be at most 4")


def test_a_prm_with_another_vocabulary_than_the_policy(problems_of, tmp_path):
    other = write_model(tmp_path / "prm", tokens=("a", "c", "b"))
    problems = problems_of(changes={"prm.model.path": other})
    assert any(p.startswith(f"prm.model.path: {other} has another vocabulary than the policy") for p in problems)
    assert any(p.startswith(f"prm.reference_path: {other} has another vocabulary") for p in problems)


def test_a_prm_with_the_same_tokenizer_and_padded_embeddings_is_fine(problems_of, tmp_path):
    assert problems_of(changes={"prm.model.path": write_model(tmp_path / "prm", n_embeddings=64)}) == []


def test_a_model_with_fewer_embeddings_than_its_tokenizer_has_tokens(problems_of, tmp_path):
    small = write_model(tmp_path / "policy", n_embeddings=2)
    problems = problems_of(changes={"actor_rollout_ref.model.path": small})
    expected = (
        f"actor_rollout_ref.model.path: the tokenizer of {small} has token ids up to 2, its model only 2 embeddings"
    )
    assert problems[0] == expected


def test_names_of_the_hub_and_remote_files_are_left_to_those_who_load_them(problems_of):
    hub = {"actor_rollout_ref.model.path": "org/model", "data.train_files": "hdfs://somewhere/train.parquet"}
    assert problems_of(changes=hub) == []


# ---- the command -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override, said",
    [
        ("prime.filtre.lower=0.1", "prime.filtre"),
        ("data.train_batch_sise=8", "data.train_batch_sise"),
        ("trainer.n_gpus_per_node=${nowhere}", "nowhere"),
    ],
)
def test_an_unknown_key_on_the_command_line_is_one_line(override, said):
    config, problems = preflight("prime_trainer_cpu", [override])
    assert config is None and len(problems) == 1 and said in problems[0] and "\n" not in problems[0]


def test_the_command_prints_one_line_per_problem_and_exits_with_2_before_ray_starts(tmp_path):
    command = [sys.executable, "-m", "prime_ext.train", "--config-name=prime_trainer_cpu", "prime.filter.lower=0.9"]
    command += ["data.train_files=/nowhere/a.parquet", "actor_rollout_ref.model.path=/nowhere/m"]
    environment = {key: value for key, value in os.environ.items() if key != "VERL_PLATFORM"}
    environment["RAY_TMPDIR"] = str(tmp_path)
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    lines = [line for line in done.stderr.splitlines() if line.startswith("prime_ext: ")]
    assert done.returncode == 2, done.stderr[-2000:]
    assert lines[0] == ("prime_ext: prime.filter.lower=0.9 is above prime.filter.upper=0.8; no prompt could be kept")
    for key in ("data.train_files", "data.val_files", "actor_rollout_ref.model.path", "prm.model.path"):
        assert sum(line.startswith(f"prime_ext: {key}: ") for line in lines) == 1, (key, lines)
    assert "Traceback" not in done.stderr and "VERL_PLATFORM" not in "".join(lines)
    assert not list(tmp_path.iterdir()), "a refused run leaves nothing behind"


def test_the_cpu_configuration_chooses_the_cpu_in_the_driver_too(tmp_path):
    """Composing imports verl, which settles on a platform: the choice has to be made before."""
    program = (
        "from prime_ext.train import preflight; preflight('prime_trainer_cpu', []);"
        "import prime_ext.cpu; from verl.utils.device import get_device_name; print(get_device_name())"
    )
    environment = {key: value for key, value in os.environ.items() if key != "VERL_PLATFORM"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.split()[-1] == "cpu", done.stderr[-2000:]


REWARD_ARGUMENTS = "reward.custom_reward_function.reward_kwargs"


def test_rows_without_a_verifier_are_found_before_anything_starts(problems_of, tmp_path):
    poems = {"data.val_files": write_parquet(tmp_path / "poems.parquet", data_source="poems")}
    (problem,) = problems_of(changes=poems)
    assert problem.startswith("data.val_files") and "no verifier for data_source='poems'; name a task" in problem
    assert problems_of(changes={**poems, REWARD_ARGUMENTS: {"sources": {"poems": "math"}}}) == []
    # Another reward function knows its own data.
    assert problems_of(changes={**poems, "reward.custom_reward_function.path": "reward.py"}) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"source": {"poems": "math"}},
            f"{REWARD_ARGUMENTS}.source is not known; known: sources, modules",
        ),
        (
            {"sources": {"poems": "verse"}},
            f"{REWARD_ARGUMENTS}: no task 'verse' for data_source 'poems'; known tasks: ",
        ),
        ({"modules": ["no_such_module"]}, f"{REWARD_ARGUMENTS}: No module named 'no_such_module'"),
        ({"code_reward": "some"}, f"{REWARD_ARGUMENTS}: code_reward='some' is not one of all, fraction"),
        (
            {"math_strictness": "strict"},
            f"{REWARD_ARGUMENTS}: math_strictness='strict' is not one of no_restatement, lenient",
        ),
    ],
)
def test_wrong_arguments_of_the_reward_function(problems_of, arguments, message):
    (problem,) = problems_of(changes={REWARD_ARGUMENTS: arguments})
    assert problem.startswith(message)


def test_restatements_are_found_only_where_the_prompt_is_known(problems_of, tmp_path):
    changes = {
        "data.train_files": write_parquet(tmp_path / "math.parquet", data_source="math"),
        "reward.reward_manager.name": "dapo",
    }
    (problem,) = problems_of(changes=changes)
    assert problem.startswith("reward.reward_manager.name=dapo does not tell the reward function the prompt; set it to")
    assert problems_of(changes={**changes, REWARD_ARGUMENTS: {"math_strictness": "lenient"}}) == []
    assert problems_of(changes={**changes, "reward.reward_manager.name": "naive_with_prompt"}) == []


def test_code_rewards_need_a_sandbox(problems_of, tmp_path, monkeypatch):
    code = {"data.train_files": write_parquet(tmp_path / "code.parquet", data_source="apps")}
    assert problems_of(changes=code) == []
    protection = find_protection()
    weak = dataclasses.replace(protection, system_calls=False)
    monkeypatch.setattr("prime_ext.verifiers.sandbox.find_protection", lambda: weak)
    (problem,) = problems_of(changes=code)
    assert problem.startswith("code rewards need a sandbox, and this machine has none: no system call filter")
    assert problems_of() == []


def test_fractions_as_labels_need_a_loss_that_takes_them(problems_of):
    changes = {REWARD_ARGUMENTS: {"code_reward": "fraction"}, "prm.update_mode": "after"}
    assert problems_of(changes={**changes, "prm.loss": "nca"}) == []
    (problem,) = problems_of(changes={**changes, "prm.loss": "kto"})
    assert "code_reward=fraction makes labels between 0 and 1, but prm.loss=kto takes 0 and 1 only" in problem


STEPS = {"prime.process.granularity": "step"}
SCORES = {**STEPS, "prime.process.step_score": "sigmoid"}
MODE, SHAPE = "prime.process.accumulation.mode", "prime.process.shaping.name"
PLACE = "prime.process.accumulation.place"
CHAIN = {**SCORES, MODE: "geometric", SHAPE: "weibull"}
GAE = {"algorithm.adv_estimator": "gae", "prime.outcome.estimator": "gae"}
COMBINATIONS = [
    # What goes together.
    ({**STEPS, "prime.process.credit": "clip", "prime.process.credit_threshold": 0.2}, None),
    ({**STEPS, "prime.steps.splitter": "delimiters", "prime.steps.delimiters": [";", "\n"]}, None),
    ({**STEPS, "prime.steps.splitter": "delimiters", "prime.steps.delimiters": [13, 26]}, None),
    ({**STEPS, "prime.steps.splitter": "pattern", "prime.steps.pattern": r"^So\b"}, None),
    ({"prime.process.reward_lambda": 0.9, "prime.process.discount": 0.0}, None),
    ({**GAE, "prime.outcome.trace": 0.95}, None),
    ({**GAE, "prime.process.estimator": "gae"}, None),
    ({"prime.outcome.estimator": "remax"}, None),
    ({"prime.outcome.estimator": "prm_value", "prime.process.coefficient": 0.0}, None),
    ({"prime.outcome.estimator": "segment", "prime.segments.cuts": "low_probability"}, None),
    ({"prime.process.normalization": "outcome_relative"}, None),
    (CHAIN, None),
    ({**CHAIN, PLACE: "step_ends", "prime.process.credit": "min_form"}, None),
    ({**CHAIN, PLACE: "tokens", "prime.process.redistribution": "uniform"}, None),
    ({**CHAIN, SHAPE: "released", "prime.process.accumulation.power": 2.0}, None),
    ({**CHAIN, "prime.process.shaping.weibull.shape": 0.9, "prime.process.shaping.weibull.constant": 1.0}, None),
    (
        {**CHAIN, "prime.process.shaping.weibull.shape": 1.0, "prime.process.shaping.weibull.constant": None},
        "such a Weibull has no peak that prime.process.shaping.weibull.constant=null could make 1",
    ),
    ({**CHAIN, MODE: "none", "prime.process.credit": "min_form", "prime.process.estimator": "rloo_per_token"}, None),
    ({**STEPS, MODE: "softmin"}, None),
    ({**SCORES, MODE: "last", "prime.process.normalization": "none"}, None),
    # What does not.
    (
        {**STEPS, MODE: "geometric"},
        "prime.process.accumulation.mode=geometric takes logarithms of scores; set",
    ),
    (
        {**STEPS, MODE: "sum", SHAPE: "weibull"},
        "negative ones would gain by a bad length; set",
    ),
    (
        {**STEPS, MODE: "sum", "prime.process.accumulation.power": 2.0},
        "power=2.0 takes powers of scores; set",
    ),
    (
        {**SCORES, SHAPE: "released"},
        "prime.process.shaping.name=released reads the accumulated score; set",
    ),
    ({**CHAIN, "prime.process.credit": "min_form"}, "prime.process.credit=min_form is about rewards of steps"),
    (
        {**CHAIN, "prime.process.credit": "delta", PLACE: "step_ends"},
        "prime.process.credit=delta is about rewards",
    ),
    (
        {**CHAIN, "prime.process.redistribution": "last"},
        "single reward that prime.process.accumulation.place=last",
    ),
    ({**CHAIN, "prime.process.granularity": "response"}, "prime.process.step_score=sigmoid is about steps; set prime"),
    ({**STEPS, "prime.process.credit": "clip"}, "prime.process.credit_threshold=None must be a number"),
    ({**STEPS, "prime.process.credit": "strict_min", "prime.process.discount": 0.9}, "credit=strict_min add up to the"),
    ({**STEPS, "prime.process.reward_lambda": 0.5}, "prime.process.reward_lambda=0.5 is about tokens"),
    ({"prime.process.granularity": "response", "prime.process.redistribution": "last"}, "leaves nothing of the single"),
    (
        {"prime.process.estimator": "masked_step", "prime.process.discount": 0.9},
        "prime.process.discount=0.9: prime",
    ),
    (
        {"prime.outcome.estimator": "segment", "prime.outcome.discount": 0.9},
        "prime.outcome.discount=0.9: prime",
    ),
    ({"prime.outcome.estimator": "remax", "prime.outcome.discount": 0.9}, "prime.outcome.discount=0.9: prime"),
    (
        {**GAE, "prime.process.estimator": "gae", "prime.process.reward_lambda": 0.5},
        "prime.process.estimator=gae would apply a lambda twice",
    ),
    ({**GAE, "prime.process.estimator": "gae", "prime.process.trace": 0.5}, "share one critic with estimator=gae, but"),
    (
        {**GAE, "prime.process.estimator": "gae", "prime.process.normalization": "outcome_relative"},
        "compares two advantages, but with estimator=gae for both sources there is one",
    ),
    ({**GAE, "critic.strategy": "fsdp"}, "critic.strategy=fsdp does not work on CPU; set it to fsdp2"),
    ({**GAE, "critic.ppo_mini_batch_size": 3}, "is not a multiple of critic.ppo_mini_batch_size=3"),
    ({**GAE, "critic.use_dynamic_bsz": False}, "critic.ppo_micro_batch_size_per_gpu is not set"),
    ({**GAE, "critic.enable": False}, "critic.enable=false builds none, but prime.outcome.estimator=gae needs it"),
    ({**GAE, "critic.model.path": "/nowhere/critic"}, "critic.model.path: /nowhere/critic does not exist"),
    (
        {"prime.outcome.estimator": "prm_value", "prime.process.coefficient": 0.0, "prm.enable": False},
        "prime.outcome.estimator=prm_value reads the PRM and needs prm.enable=true",
    ),
    (
        {"prime.outcome.estimator": "segment", "prm.loss": "nca"},
        "prime.outcome.estimator=segment reads sigmoid(beta * summed log-ratio) as a probability",
    ),
    (
        {"prime.process.normalization": "outcome_relative", "prime.outcome.coefficient": 0.0},
        "prime.process.normalization=outcome_relative needs prime.outcome.coefficient > 0",
    ),
    (
        {**STEPS, "prime.steps.splitter": "delimiters", "prime.steps.delimiters": [";", 13]},
        "prime.steps.delimiters=[';', 13] must be a list of strings, or a list of token ids",
    ),
    ({**STEPS, "prime.steps.splitter": "pattern", "prime.steps.pattern": "("}, "prime.steps.pattern='(' is no regular"),
]


@pytest.mark.parametrize("changes, said", COMBINATIONS)
def test_combinations_are_accepted_or_refused_in_one_line(problems_of, changes, said):
    problems = problems_of(changes=changes)
    if said is None:
        assert problems == []
    else:
        (problem,) = problems
        assert said in problem and "\n" not in problem


def test_a_critic_on_accelerators_needs_nothing_but_the_two_keys(problems_of):
    assert problems_of("prime_trainer", changes={"trainer.n_gpus_per_node": 8, **GAE}) == []


REFERENCES = [
    ({"prm.reference": "kl", "actor_rollout_ref.actor.use_kl_loss": True}, None),
    ({"prm.reference": "kl", "algorithm.use_kl_in_reward": True}, None),
    ({"prm.reference": "base", "prm.model.lora_rank": 8}, None),
    ({"prm.reference_refresh_freq": 4}, None),
    (
        {
            "prm.reference_refresh_freq": 4,
            "actor_rollout_ref.model.lora_rank": 8,
            "actor_rollout_ref.model.lora.merge": True,
        },
        "prm.reference_refresh_source=policy is trained through a LoRA adapter",
    ),
    (
        {"prm.reference_refresh_freq": 4, "prm.reference_refresh_source": "prm", "prm.model.lora_rank": 8},
        "prm.reference_refresh_source=prm is trained through a LoRA adapter",
    ),
    (
        {"prm.model.lora_rank": 8, "prm.checkpoint.save_contents": ["model", "hf_model"]},
        "prm.checkpoint.save_contents has hf_model, which verl writes without merging a LoRA adapter",
    ),
    ({"prm.update_mode": "none", "prm.epochs": 2}, "prm.epochs=2 has no effect with prm.update_mode=none"),
    ({"prm.trainable_layers": 1}, None),
    ({"prm.trainable_layers": 0.3}, None),
    ({"prm.trainable_layers": 1.5}, "prm.trainable_layers=1.5 must be a whole number"),
    ({"prm.trainable_layers": 0.0}, "prm.trainable_layers=0.0 must be"),
    (
        {"prm.trainable_layers": 1, "prm.model.lora_rank": 8},
        "prm.trainable_layers=1 freezes layers of a model that is trained as a whole, and prm.model has a LoRA adapter",
    ),
    (
        {"prm.trainable_layers": 1, "prm.update_mode": "none"},
        "prm.trainable_layers=1 has no effect with prm.update_mode=none",
    ),
    ({"prm.bias.enable": True}, None),
    ({"prm.train_on": "judged", "prm.judged_limit": 64}, None),
    ({"prm.update_mode": "none", "prm.train_on": "judged"}, "prm.train_on=judged has no effect with prm.update_mode=n"),
    (
        {"prm.train_on": "judged", "prime.filter.enable": False},
        "prm.train_on=judged has no effect with prime.filter.enable=false, which drops nothing",
    ),
    (
        {"prm.train_on": "judged", "trainer.v1.trainer_mode": "prime_colocate_async"},
        "prm.train_on=judged needs trainer.v1.trainer_mode=prime_sync, where a batch ends the search, not prime_coloc",
    ),
    (
        {"prm.train_on": "judged", "skip.rollout_tq.enable": True},
        "prm.train_on=judged needs what the filter drops, and skip.rollout_tq.enable=true replays only the rest",
    ),
    ({"prm.replay.batches": 4, "trainer.v1.trainer_mode": "prime_colocate_async"}, None),
    ({"prm.update_mode": "none", "prm.replay.batches": 4}, "prm.replay.batches=4 has no effect with prm.update_mode=n"),
    ({"prm.update_mode": "none", "prm.bias.enable": True}, "prm.bias.enable=true has no effect with prm.update_mode=n"),
]


@pytest.mark.parametrize(("changes", "message"), REFERENCES)
def test_references_and_adapters_that_cannot_work_are_refused(problems_of, changes, message):
    problems = problems_of(changes=changes)
    assert problems == [] if message is None else len(problems) == 1 and message in problems[0]


@pytest.mark.parametrize("strategy, prm, refused", [("fsdp", "fsdp", 0), ("fsdp2", "fsdp2", 0), ("fsdp", "fsdp2", 1)])
def test_a_refreshed_reference_needs_one_strategy(problems_of, strategy, prm, refused):
    strategies = {"actor_rollout_ref.actor.strategy": strategy, "prm.engine.strategy": prm}
    problems = problems_of("prime_trainer", changes=strategies | GPUS | {"prm.reference_refresh_freq": 4})
    said = "copies shard by shard, between engines of one strategy (fsdp or fsdp2); that of policy is fsdp, that of prm"
    assert len(problems) == refused and all(said in problem for problem in problems)


@pytest.mark.parametrize("dtype", ["bf16", None])
def test_the_prms_weights_are_float32(problems_of, dtype):
    (problem,) = problems_of("prime_trainer", changes=GPUS | {"prm.engine.model_dtype": dtype})
    assert problem.startswith(f"prm.engine.model_dtype={dtype}: verl would round the weights")
    assert "set it to fp32 (passes run in prm.engine.mixed_precision.param_dtype" in problem


@pytest.mark.parametrize(
    "section, strategy",
    [("actor_rollout_ref.model", "actor_rollout_ref.actor.strategy"), ("prm.model", "prm.engine.strategy")],
)
@pytest.mark.parametrize("tied", [True, False])
def test_verls_fused_kernels_do_not_reach_an_output_layer_of_its_own_on_fsdp2(
    problems_of, tmp_path, section, strategy, tied
):
    model = write_model(tmp_path / "model")
    config = {"model_type": "llama", "vocab_size": 8, "tie_word_embeddings": tied}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    fused = {f"{section}.use_fused_kernels": True, "actor_rollout_ref.model.path": model}
    changes = GPUS | fused | {strategy: "fsdp2", f"{section}.fused_kernel_options.impl_backend": "triton"}
    problems = problems_of("prime_trainer", changes=changes)
    assert len(problems) == (not tied)
    if not tied:
        assert problems[0].startswith(f"{section}.fused_kernel_options.impl_backend=triton reads the output layer's")
        assert problems[0].endswith("set it to chunked")
    assert problems_of("prime_trainer", changes=changes | {strategy: "fsdp"}) == []


def test_what_the_settings_say_of_the_losses_is_what_the_losses_say():
    assert tuple(PRM_LOSSES) == LOSSES
    assert {name for name, loss in PRM_LOSSES.items() if loss.needs_scores} == set(LOSSES_THAT_NEED_SCORES)
    assert {name for name, loss in PRM_LOSSES.items() if not loss.allows_soft_labels} == set(LOSSES_OF_HARD_LABELS)


def test_what_the_settings_say_of_the_estimators_is_what_the_estimators_say():
    known = estimators.ESTIMATORS
    assert set(known) == {*OUTCOME_ESTIMATORS, *PROCESS_ESTIMATORS}
    assert {name for name, entry in known.items() if entry.uses_groups} == set(GROUP_ESTIMATORS)
    # The last one is a running factor on the advantage and no function of a batch.
    assert (*normalization.NORMALIZATIONS, "outcome_relative") == NORMALIZATIONS
    assert tuple(step_credit.CREDITS) == CREDITS and set(CREDITS_WITH_A_THRESHOLD) <= set(CREDITS)
    assert tuple(SPLITTERS) == TEXT_SPLITTERS


def test_what_the_settings_say_of_chains_is_what_the_algorithms_say():
    assert ("none", *accumulation.MODES) == chain_settings.ACCUMULATIONS
    assert accumulation.MODES_OF_POSITIVE_SCORES == chain_settings.ACCUMULATIONS_OF_POSITIVE_SCORES
    assert tuple(shaping.SHAPES) == chain_settings.SHAPES
    assert shaping.SHAPES_OF_THE_SCORE == chain_settings.SHAPES_OF_THE_SCORE
    assert chain_reward.SINGLE_STEPS == chain_settings.SINGLE_STEPS
    assert process_shaping.PLACES == chain_settings.PLACES
    assert step_scores.STEP_SCORES == chain_settings.STEP_SCORES
    for credit in CREDITS:
        shares = credit in chain_settings.CREDITS_WITH_SHARES
        with nullcontext() if shares else pytest.raises(ValueError, match="has no shares of one reward"):
            step_credit.StepCredit(credit).shares(torch.ones(1, 2), torch.ones(1, 2))


@pytest.mark.parametrize("section", ["actor_rollout_ref.model", "prm.model"])
def test_a_fused_kernel_has_to_exist_on_the_device(problems_of, section):
    def changes(backend):
        return {f"{section}.use_fused_kernels": True, f"{section}.fused_kernel_options.impl_backend": backend}

    assert problems_of(changes=changes("chunked")) == problems_of(changes=changes("torch")) == []
    assert problems_of("prime_trainer", changes=changes("triton") | {"trainer.n_gpus_per_node": 1}) == []
    for backend in ("triton", "magic"):
        (problem,) = problems_of(changes=changes(backend))
        assert f"{section}.fused_kernel_options.impl_backend={backend} is not one of chunked, torch " in problem
