# SPDX-License-Identifier: Apache-2.0
"""Every configuration of PSPO-WRS that cannot work is refused in one line, before Ray starts."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf, open_dict

from prime_ext.config import pspo_settings
from prime_ext.preflight.check import check_config, check_files
from prime_ext.step_rm.description import FILE, Description, PairFormat
from prime_ext.step_rm.labels import ID2LABEL
from prime_ext.train import preflight


def write_step_rm(folder, id2label=ID2LABEL):
    """The part of a step reward model that is read before anything starts."""
    folder.mkdir(parents=True)
    config = {"model_type": "bert"} | ({"id2label": id2label} if id2label else {})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / FILE).write_text(Description(PairFormat(), 1.0, (-1, 0, 1)).to_json())
    return str(folder)


def write_parquet(path, **columns):
    values = {"prompt": "x", "data_source": "gsm8k", "reward_model": "x"} | columns
    pyarrow.parquet.write_table(pyarrow.table({name: [value] * 2 for name, value in values.items() if value}), path)
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    (root / "policy").mkdir()
    (root / "policy" / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 8}))
    return {
        "policy": str(root / "policy"),
        "step_rm": write_step_rm(root / "step_rm"),
        "data": write_parquet(root / "data.parquet"),
        "root": root,
    }


ADDED = ["+pspo=pspo", "+step_scorer=step_scorer", "reward.reward_manager.name=pspo_wrs"]


@pytest.fixture(scope="module")
def composed():
    with initialize_config_module("prime_ext.config", version_base=None):
        return {
            "pspo_trainer": compose("pspo_trainer"),
            "pspo_trainer_cpu": compose("pspo_trainer_cpu"),
            "prime_trainer_cpu": compose("prime_trainer_cpu", ADDED),
        }


@pytest.fixture
def problems_of(composed, files, monkeypatch):
    """Checks a configuration that is in order but for the given changes."""
    monkeypatch.setenv("VERL_PLATFORM", "cpu")

    def check(changes=None, name="pspo_trainer_cpu"):
        config = composed[name].copy()
        good = {
            "data.train_files": files["data"],
            "data.val_files": files["data"],
            "actor_rollout_ref.model.path": files["policy"],
            "step_scorer.model_path": files["step_rm"],
            "data.train_batch_size": 16,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
        }
        with open_dict(config):
            for key, value in {**good, **(changes or {})}.items():
                OmegaConf.update(config, key, value, force_add=True)
        OmegaConf.resolve(config)
        return [*check_config(config), *check_files(config)]

    return check


@pytest.mark.parametrize("name", ["pspo_trainer", "pspo_trainer_cpu", "prime_trainer_cpu"])
def test_the_configurations_are_accepted_once_files_are_named(problems_of, name):
    assert problems_of(name=name) == []


ROLLOUTS = {"actor_rollout_ref.rollout.n": 4}
SERVER = {"step_scorer.kind": "server"}
POOL = {"reward.reward_model.enable": True, "reward.reward_model.enable_resource_pool": True}

FINE = [
    {"algorithm.adv_estimator": "grpo", **ROLLOUTS},
    {"algorithm.adv_estimator": "rloo", **ROLLOUTS},
    {"algorithm.adv_estimator": "reinforce_plus_plus"},
    {"algorithm.adv_estimator": "reinforce_plus_plus", "pspo.accumulation.place": "step_ends"},
    {"pspo.accumulation.place": "step_ends", "pspo.credit": "min_form"},
    {"pspo.accumulation.mode": "none", "pspo.shaping.name": "none", "pspo.credit": "delta"},
    {"trainer.v1.trainer_mode": "sync", "pspo.on_failure": "zero"},
    # A sum over the response is the same at its last token.
    {
        "trainer.v1.trainer_mode": "sync",
        "pspo.on_failure": "zero",
        "pspo.accumulation.mode": "none",
        "algorithm.adv_estimator": "grpo",
        **ROLLOUTS,
    },
    {**SERVER, "step_scorer.address": "http://here:8000"},
    {**SERVER, **POOL},
]


@pytest.mark.parametrize("changes", FINE)
def test_what_works(problems_of, changes):
    assert problems_of(changes) == []


REFUSED = [
    # settings
    ({"pspo.accumulation.mode": "avg"}, "pspo.accumulation.mode='avg' is not one of none, sum, mean, geometric"),
    (
        {"pspo.shaping.weibull.shape": 1.0, "pspo.shaping.weibull.constant": None},
        "pspo.shaping.weibull.shape=1.0: such a Weibull has no peak",
    ),
    ({"pspo.steps.splitter": "pattern"}, "pspo.steps.pattern=None with pspo.steps.splitter=pattern"),
    ({"pspo.steps.pattern": "x"}, "pspo.steps.pattern='x' with pspo.steps.splitter=auto: leave it null"),
    ({"pspo.credit": "delta"}, "pspo.credit=delta is about rewards of steps, and pspo.accumulation.mode=geometric"),
    ({"pspo.credit": "half"}, "pspo.credit='half' is not one of sum, min_form"),
    ({"pspo.credit_threshold": 0.5}, "pspo.credit_threshold=0.5 is read by pspo.credit=clip and clip_delta only"),
    ({"pspo.outcome_coefficient": -1}, "pspo.outcome_coefficient=-1 must be a number >= 0"),
    ({"pspo.outcome_coefficient": 1, "pspo.judge": False}, "needs the verdicts that pspo.judge=false does without"),
    ({"pspo.on_failure": "skip"}, "pspo.on_failure='skip' is not one of drop, zero, stop"),
    ({"pspo.warn_rate": 2}, "pspo.warn_rate=2 must be a number >= 0 and <= 1"),
    ({"pspo.log_path": 7}, "pspo.log_path=7 must be a folder or null"),
    ({"pspo.batching.window_ms": -1}, "pspo.batching.window_ms=-1 must be a number >= 0"),
    ({"pspo.batching.max_tokens": 0}, "pspo.batching.max_tokens=0 must be a whole number >= 1"),
    ({"pspo.actor.num_gpus": 1.5}, "pspo.actor.num_gpus=1.5: Ray reserves a fraction of one GPU, or whole ones"),
    ({"pspo.actor.cpu_threads": 0}, "pspo.actor.cpu_threads=0 must be a whole number >= 1"),
    ({"pspo.more": 1}, "unknown key pspo.more; known keys: accumulation, actor"),
    # the step reward model
    ({"step_scorer.model_path": None}, "step_scorer.model_path is missing; give the folder of the step reward model"),
    ({"step_scorer.model_path": "/nowhere"}, "step_scorer.model_path: /nowhere is no model folder"),
    ({"step_scorer.device": "cuda:0"}, "step_scorer.device=cuda:0 needs a GPU of Ray's; set pspo.actor.num_gpus"),
    (
        {"step_scorer.device": "cpu", "pspo.actor.num_gpus": 0.5, "trainer.device": "cuda"},
        "pspo.actor.num_gpus=0.5 reserves GPUs that step_scorer.device=cpu does not use",
    ),
    ({"pspo.actor.num_gpus": 1}, "pspo.actor.num_gpus=1: there are none with trainer.device=cpu"),
    (SERVER, "step_scorer.address is not set and verl's reward-model pool is off"),
    ({**SERVER, "step_scorer.address": "a:1", "pspo.actor.cpu_threads": 2}, "pspo.actor is read with step_scorer.kind"),
    (
        {**SERVER, **POOL, "reward.reward_model.model_path": "/other"},
        "reward.reward_model.model_path=/other is served, but step_scorer.model_path=",
    ),
    ({"reward.reward_model.enable": True}, "without its own resource pool scores after sampling and without the rows'"),
    (
        {**SERVER, **POOL, "reward.custom_reward_function.path": None},
        "makes verl pass over reward managers unless reward.custom_reward_function.path is set",
    ),
    # trainers and estimators
    ({"trainer.v1.trainer_mode": "prime_sync"}, "trainer.v1.trainer_mode=prime_sync is not one of pspo_sync, "),
    ({"trainer.use_v1": False}, "trainer.use_v1=false selects verl's deprecated trainer"),
    ({"reward.reward_manager.name": "naive"}, "reward.reward_manager.name=naive does not read pspo"),
    ({"trainer.v1.trainer_mode": "sync"}, "pspo.on_failure=drop is known to the pspo_* trainers only; set trainer.v1."),
    (
        {"trainer.v1.trainer_mode": "sync", "pspo.on_failure": "zero", "pspo.accumulation.place": "step_ends"},
        "pspo.accumulation.place=step_ends pays elsewhere than at the last token, which verl's own trainers cannot; "
        "set trainer.v1.trainer_mode=pspo_sync",
    ),
    (
        {"trainer.v1.trainer_mode": "sync", "pspo.on_failure": "zero", "pspo.accumulation.mode": "none"},
        "pspo.accumulation.mode=none pays elsewhere than at the last token",
    ),
    (
        {"algorithm.adv_estimator": "grpo", "pspo.accumulation.place": "step_ends", **ROLLOUTS},
        "algorithm.adv_estimator=grpo sums the rewards of a response, wherever they are; leave it at last_token, or "
        "use gae or reinforce_plus_plus",
    ),
    ({"algorithm.adv_estimator": "grpo"}, "actor_rollout_ref.rollout.n=1: algorithm.adv_estimator=grpo compares the"),
    ({"algorithm.adv_estimator": "remax"}, "algorithm.adv_estimator=remax needs more than verl's V1 trainer gives it"),
    ({"algorithm.adv_estimator": "gea"}, "algorithm.adv_estimator=gea is not one of gae, "),
    # the rest, as for PRIME
    ({"data.train_batch_size": 12}, "data.train_batch_size=12 is not a multiple of actor_rollout_ref.actor.ppo_mini"),
    ({"critic.use_dynamic_bsz": False}, "critic.ppo_micro_batch_size_per_gpu is not set; set it, or critic.use_dynam"),
    ({"critic.strategy": "fsdp"}, "critic.strategy=fsdp does not work on CPU"),
    ({"ray_kwargs.ray_init.num_cpus": 2}, "ray_kwargs.ray_init.num_cpus=2: verl reserves 5 logical CPUs"),
    ({"actor_rollout_ref.rollout.temperature": 0}, "actor_rollout_ref.rollout.temperature=0 must be above 0"),
    ({"data.train_files": None}, "data.train_files is not set"),
    ({"actor_rollout_ref.model.path": "/no/policy"}, "actor_rollout_ref.model.path: /no/policy does not exist"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_cannot_work_is_one_line(problems_of, changes, said):
    problems = problems_of(changes)
    assert any(said in problem for problem in problems), problems
    assert all("\n" not in problem for problem in problems)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (None, "has no label map; set id2label in its config.json"),
        ({0: "no", 1: "yes"}, "has 2 labels (no, yes), a step reward model has three"),
        ({0: "a", 1: "b", 2: "c"}, "has the labels a, b, c, which are not -1, 0 and 1"),
    ],
)
def test_a_reward_model_with_other_classes(problems_of, tmp_path, labels, said):
    (problem,) = problems_of({"step_scorer.model_path": write_step_rm(tmp_path / "rm", labels)})
    assert problem.startswith("step_scorer.model_path: ") and said in problem


def test_gold_answers_are_needed_only_where_they_count(problems_of, files):
    bare = {"data.train_files": write_parquet(files["root"] / "bare.parquet", data_source=None, reward_model=None)}
    assert problems_of(bare) == []
    problems = problems_of({**bare, "pspo.outcome_coefficient": 0.5})
    assert any("has no column 'data_source'" in problem for problem in problems)


def test_the_verifiers_are_checked_only_where_responses_are_judged(problems_of, files):
    poems = {"data.train_files": write_parquet(files["root"] / "poems.parquet", data_source="poems")}
    assert any("data_source='poems'" in problem for problem in problems_of(poems))
    assert problems_of({**poems, "pspo.judge": False}) == []


IN_PRIME = [
    ({"pspo.judge": False}, "pspo.judge=false leaves PRM and prompt filter without labels (prime.label_key=acc)"),
    (
        {"pspo.accumulation.place": "tokens"},
        "pspo.accumulation.place=tokens: PRIME pays the outcome reward at the",
    ),
    ({"pspo.on_failure": "zero"}, "pspo.on_failure=zero: in PRIME, prime.verifier.on_failure=drop counts"),
    ({"prime.verifier.warn_rate": 0.5}, "pspo.warn_rate=0.01: in PRIME, prime.verifier.warn_rate=0.5 counts"),
    (
        {"reward.reward_manager.name": "naive_with_prompt"},
        "the section pspo is read with reward.reward_manager.name=pspo_wrs only",
    ),
    ({"pspo": None}, "reward.reward_manager.name=pspo_wrs needs the section pspo; use --config-name=pspo_trainer, or"),
    ({"step_scorer.model_path": None}, "step_scorer.model_path is missing"),
]


@pytest.mark.parametrize(("changes", "said"), IN_PRIME, ids=lambda value: str(value)[:60])
def test_inside_prime(problems_of, changes, said):
    (problem,) = problems_of(changes, "prime_trainer_cpu")
    assert said in problem


def test_the_own_main_checks_it_from_the_command_line(files, monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    overrides = [f"data.train_files={files['data']}", f"data.val_files={files['data']}", "pspo.steps.splitter=words"]
    config, problems = preflight("pspo_trainer_cpu", [*overrides, f"actor_rollout_ref.model.path={files['policy']}"])
    assert config is not None and any(problem.startswith("pspo.steps.splitter='words'") for problem in problems)


def test_names_of_estimators_are_verls():
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    named = {*pspo_settings.TOKEN_ESTIMATORS, *pspo_settings.GROUP_ESTIMATORS}
    assert named <= set(ADV_ESTIMATOR_REGISTRY)
    assert not {*pspo_settings.TOKEN_ESTIMATORS} & {*pspo_settings.GROUP_ESTIMATORS}


def test_which_of_verls_estimators_tell_tokens_apart():
    """Moving a reward inside of a response changes the advantage of exactly these."""
    import numpy as np
    import torch
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

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


def test_the_example_of_the_released_model_is_read(problems_of, tmp_path):
    """A model without a description of its own, as PSPO's: its format stands in the configuration."""
    folder = Path(write_step_rm(tmp_path / "bert_output4"))
    (folder / FILE).unlink()
    changes = {"step_scorer.model_path": str(folder)}
    (problem,) = problems_of(changes)
    assert "has no prime_ext_step_rm.json, which says what the model reads" in problem
    assert problems_of({**changes, "step_scorer.pair_format": {"layout": "text"}}) == []
