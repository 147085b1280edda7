# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The recipes of PSPO-WRS: what each script really starts is composed and checked, without starting it."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_module
from transformers import BertConfig, BertForSequenceClassification

from prime_ext.compose_config import compose_config
from prime_ext.preflight import check_config
from prime_ext.step_rm.description import FILE, Description
from prime_ext.step_rm.labels import ID2LABEL, LABEL2ID, LABELS
from prime_ext.step_rm.pairs import PairFormat
from prime_ext.step_rm.train.__main__ import compose as compose_step_rm
from recipes.pspo_wrs import length_study
from recipes.pspo_wrs.prepare import STEP_RM_SETTINGS
from recipes.pspo_wrs.task import MAX_RESPONSE_LENGTH

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


@pytest.fixture(scope="module")
def step_rm(tmp_path_factory):
    """A folder that says what a step reward model says; its weights are never loaded."""
    folder = tmp_path_factory.mktemp("step_rm")
    config = BertConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    config.num_labels, config.id2label, config.label2id = 3, dict(ID2LABEL), dict(LABEL2ID)
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)
    (folder / FILE).write_text(Description(PairFormat(), 1.0, LABELS).to_json())
    return folder


@pytest.fixture
def started(tmp_path):
    """Runs a script with an interpreter that only writes down its arguments; returns them, call by call."""
    calls, stub = tmp_path / "calls", tmp_path / "python"
    stub.write_text(f'#!/usr/bin/env bash\nprintf "%s\\0" "$@" >> {calls}\nprintf "\\n\\0" >> {calls}\n')
    stub.chmod(0o755)

    def run(script, *words, **knobs):
        calls.unlink(missing_ok=True)
        environment = {**os.environ, "PYTHON": str(stub), "OUTPUT_DIR": str(tmp_path / "out"), **knobs}
        command = ["bash", str(RECIPES / script), *map(str, words)]
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return [call.split("\0")[:-1] for call in calls.read_text().split("\n\0")[:-1]]

    return run


def overrides_of(call, module):
    """Overrides of a call of a module, and the name of its primary configuration."""
    words = call[call.index(module) + 1 :]
    names = [word.removeprefix("--config-name=") for word in words if word.startswith("--config-name=")]
    return [word for word in words if not word.startswith("--")], names[0] if names else None


def checked(call):
    """The configuration of a training run, after our preflight found nothing."""
    overrides, name = overrides_of(call, "prime_ext.train")
    config = compose_config(name, overrides)
    assert check_config(config) == []
    return config


# ---- policy ----


def test_the_ppo_recipe_has_the_settings_of_the_released_code(started, step_rm):
    (call,) = started("pspo_wrs_ppo.sh", "policy", step_rm, "train.parquet", "val.parquet")
    config = checked(call)
    assert config.algorithm.adv_estimator == "gae"
    assert (config.algorithm.gamma, config.algorithm.lam) == (1.0, 0.95)
    assert config.algorithm.use_kl_in_reward and config.algorithm.kl_ctrl.type == "adaptive"
    assert (config.algorithm.kl_ctrl.kl_coef, config.algorithm.kl_ctrl.target_kl) == (0.2, 6.0)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (actor.optim.lr, actor.ppo_epochs, actor.clip_ratio) == (1.41e-5, 4, 0.2)
    assert (rollout.n, rollout.temperature, rollout.top_p, rollout.top_k) == (1, 1.0, 1.0, -1)
    assert config.data.train_batch_size == 8 * config.trainer.n_gpus_per_node
    assert config.data.max_response_length == 512
    assert config.pspo.outcome_coefficient == 0.0
    assert (config.pspo.accumulation.mode, config.pspo.shaping.name) == ("geometric", "weibull")


def test_the_ppo_recipe_trains_lora_weights_or_all(started, step_rm):
    words = ("policy", step_rm, "train.parquet", "val.parquet")
    for rank, knobs in ((0, {}), (16, {"LORA": "16"})):
        config = checked(started("pspo_wrs_ppo.sh", *words, **knobs)[0])
        policy, critic = config.actor_rollout_ref.model, config.critic.model
        assert policy.lora_rank == rank and critic.lora_rank == 0
        assert not rank or policy.lora_alpha == 32


@pytest.mark.parametrize(
    ("overrides", "knobs"),
    [
        (["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8"], {}),
        (["algorithm.adv_estimator=rloo", "actor_rollout_ref.rollout.n=4"], {}),
        (["chain@pspo=cn_ppo"], {}),
        (["chain@pspo=pspo_released"], {}),
        (["pspo.outcome_coefficient=1.0"], {}),
        ([], {"SCORER": "http://host:8000"}),
        ([], {"SCORER_GPUS": "0.2", "N_GPUS": "8", "TRAIN_BATCH": "128", "MINI_BATCH": "32"}),
    ],
    ids=["grpo", "rloo", "cn_ppo", "released", "outcome", "server", "scorer_on_gpu"],
)
def test_variants_of_the_ppo_recipe_are_configurations_that_work(started, step_rm, overrides, knobs):
    checked(started("pspo_wrs_ppo.sh", "policy", step_rm, "train.parquet", "val.parquet", *overrides, **knobs)[0])


# ---- step reward model ----


def test_the_step_rm_recipe_converts_the_labels_and_trains_as_the_released_code(started, tmp_path):
    convert, train = started("pspo_wrs_step_rm.sh", "bert", "labels.jsonl")
    steps = str(tmp_path / "out" / "steps.parquet")
    assert convert == ["-m", "prime_ext.step_rm.convert", "--pspo", "labels.jsonl", "--output", steps]
    settings = compose_step_rm(overrides_of(train, "prime_ext.step_rm.train")[0])
    assert settings.data.paths == [steps]
    assert (settings.data.layout, settings.data.previous, settings.data.max_length) == ("text", 1, 256)
    assert not settings.data.question
    optim = settings.optim
    assert (optim.lr, optim.epochs, optim.warmup_ratio) == (2e-5, 10, 0.05)
    # On two devices.
    assert optim.batch_size * optim.accumulation * 2 == 2048


def test_the_step_rm_recipe_takes_converted_steps_and_other_formats(started):
    (train,) = started("pspo_wrs_step_rm.sh", "bert", "steps.parquet", N_GPUS="8", EFFECTIVE_BATCH="512")
    settings = compose_step_rm(overrides_of(train, "prime_ext.step_rm.train")[0])
    assert settings.data.paths == ["steps.parquet"] and settings.optim.accumulation == 2
    convert, _ = started("pspo_wrs_step_rm.sh", "bert", "shepherd.jsonl", FORMAT="math_shepherd")
    assert convert[2] == "--math-shepherd"


# ---- supervised start ----


def test_the_sft_recipe_is_a_configuration_of_verls_sft_trainer(started):
    (call,) = started("pspo_wrs_sft.sh", "abel", "sft.parquet")
    overrides, _ = overrides_of(call, "verl.trainer.sft_trainer")
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("sft_trainer_engine", overrides=overrides)
    assert (config.optim.lr, config.optim.lr_warmup_steps_ratio, config.trainer.total_epochs) == (3e-5, 0.03, 1)
    assert (config.data.train_batch_size, config.data.max_length) == (64, 1024)
    assert config.model.path == "abel" and config.data.train_files == "sft.parquet"


@pytest.mark.parametrize("script", sorted(path.name for path in RECIPES.glob("pspo_*.sh")))
def test_every_recipe_explains_itself(script):
    done = subprocess.run(["bash", str(RECIPES / script), "--help"], capture_output=True, text=True, check=True)
    assert f"recipes/{script}" in done.stdout


@pytest.mark.parametrize("script", ["pspo_wrs_ppo.sh", "pspo_wrs_sft.sh", "pspo_wrs_step_rm.sh"])
def test_a_gpu_recipe_without_arguments_is_refused_and_says_that_it_was_never_run(script):
    done = subprocess.run(["bash", str(RECIPES / script)], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "NEVER RUN ON A GPU" in done.stdout


# ---- CPU ----


@pytest.mark.parametrize("shape", length_study.SHAPES)
def test_every_shape_of_the_study_is_a_configuration_that_works(started, step_rm, tmp_path, shape):
    run = length_study.Run("lenient", shape, 3)
    words = length_study.arguments(run, tmp_path)
    assert words[3] == str(tmp_path / "step_rm_lenient" / "model")
    words[3] = str(step_rm)
    (call,) = started("pspo_wrs/train_cpu.sh", *words, SEED="3", **length_study.KNOBS)
    config = checked(call)
    assert config.pspo.shaping.name == shape
    expected = {"gaussian": (0.2, 1.0), "released": (1.0, 2.0)}.get(shape, (1.0, 1.0))
    assert (config.pspo.accumulation.first_weight, config.pspo.accumulation.power) == expected
    assert config.pspo.accumulation.mode == "geometric"
    assert config.data.seed == config.actor_rollout_ref.rollout.seed == 3
    assert config.pspo.steps.pattern == r"(?<=;)\d"
    assert config.data.max_response_length == MAX_RESPONSE_LENGTH


def test_the_settings_of_the_small_step_reward_model_work():
    places = ["model.path=start", "data.files=steps.parquet", "trainer.output_dir=out"]
    settings = compose_step_rm([*places, *STEP_RM_SETTINGS])
    assert settings.data.question and settings.data.separator == ";"
