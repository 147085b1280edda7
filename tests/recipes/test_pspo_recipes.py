# SPDX-License-Identifier: Apache-2.0
"""The recipes of PSPO-WRS: what each script really starts is composed and checked, without starting it."""

import subprocess

import pytest
import torch
import yaml
from recipe_calls import RECIPES, calls_of, differences, name_of, overrides_of, variants_of, wanted_of
from transformers import BertConfig, BertForSequenceClassification

from prime_ext import doctor
from prime_ext.config.compose import SFT_CONFIG, compose_config
from prime_ext.preflight.check import check_config
from prime_ext.step_rm.description import FILE, Description, PairFormat
from prime_ext.step_rm.labels import ID2LABEL, LABEL2ID, LABELS
from prime_ext.step_rm.train.__main__ import compose as compose_step_rm
from recipes.pspo_wrs import length_study
from recipes.pspo_wrs.prepare import STEP_RM_SETTINGS
from recipes.pspo_wrs.task import MAX_RESPONSE_LENGTH

PAPER = yaml.safe_load((RECIPES / "pspo_wrs" / "paper.yaml").read_text())
FOLDER = RECIPES / "pspo_wrs"
SCRIPTS = sorted(path.name for path in FOLDER.glob("run_*.sh"))
PPO, SFT, STEP_RM = "run_abel-7b_ppo_fsdp.sh", "run_abel-7b_sft_fsdp.sh", "run_bert-large_step-rm_ddp.sh"


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

    def run(script, *words, **knobs):
        return calls_of(tmp_path, f"pspo_wrs/{script}", *words, **knobs)

    return run


def checked(call):
    """The configuration of a training run, after our preflight found nothing."""
    overrides, name = overrides_of(call, "prime_ext.train")
    config = compose_config(name, overrides)
    assert check_config(config) == []
    return config


# ---- settings of the papers ----


@pytest.mark.parametrize("recipe", PAPER["recipes"], ids=name_of)
def test_a_recipe_is_what_the_paper_and_its_code_say(started, step_rm, recipe):
    script, knobs = recipe["script"], recipe.get("knobs", {})
    wanted = wanted_of(PAPER, recipe)
    if script == PPO:
        config = checked(started(script, "policy", step_rm, "train.parquet", "val.parquet", **knobs)[0])
    elif script == SFT:
        (call,) = started(script, *recipe["words"], **knobs)
        config = compose_config(SFT_CONFIG, overrides_of(call, "prime_ext.sft")[0])
    else:
        (call,) = started(script, *recipe["words"], **knobs)
        config = compose_config("step_rm", overrides_of(call, "prime_ext.step_rm.train")[0])
    assert differences(config, wanted) == {}


def test_every_variant_and_every_script_is_in_the_table():
    named = {
        recipe.get("knobs", {}).get("VARIANT", "weibull") for recipe in PAPER["recipes"] if recipe["script"] == PPO
    }
    assert variants_of(f"pspo_wrs/{PPO}") == named
    assert set(SCRIPTS) == {recipe["script"] for recipe in PAPER["recipes"]}


def test_a_dry_run_plans_without_data_or_models(started, capsys):
    (call,) = started(PPO, "GAIR/Abel-7B-002", "no/step_rm", "no.parquet", "no.parquet", DRY_RUN="1", STEPS="170")
    assert call[:3] == ["-m", "prime_ext.doctor", "--plan"]
    assert doctor.main(call[2:]) == 0
    out = capsys.readouterr().out
    for text in ("policy 6,738,423,808", "critic", "fits:", "not here: step_scorer.model_path: no/step_rm"):
        assert text in out


def test_an_unknown_variant_is_one_line(tmp_path):
    command = ["env", "VARIANT=weibul", f"OUTPUT_DIR={tmp_path / 'out'}", "bash", str(FOLDER / PPO), *"abcd"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "VARIANT=weibul is unknown" in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("overrides", "knobs"),
    [
        (["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8"], {}),
        (["algorithm.adv_estimator=rloo", "actor_rollout_ref.rollout.n=4"], {}),
        (["chain@pspo=cn_ppo"], {}),
        ([], {"SCORER": "http://host:8000"}),
        ([], {"LORA": "16"}),
        ([], {"SCORER_GPUS": "0"}),
        ([], {"SCORER_GPUS": "0.2", "N_GPUS": "8", "TRAIN_BATCH": "128", "MINI_BATCH": "32"}),
    ],
    ids=["grpo", "rloo", "chain", "server", "lora", "scorer_on_cpu", "scorer_on_gpu"],
)
def test_variants_of_the_ppo_recipe_are_configurations_that_work(started, step_rm, overrides, knobs):
    checked(started(PPO, "policy", step_rm, "train.parquet", "val.parquet", *overrides, **knobs)[0])


@pytest.mark.parametrize(
    ("knobs", "gpus", "threads"),
    [({}, 1, None), ({"SCORER_GPUS": "0"}, 0, 16), ({"SCORER": "http://host:8000"}, 0, None)],
)
def test_the_step_reward_model_has_a_gpu_or_many_threads(started, step_rm, knobs, gpus, threads):
    """With one thread, which Ray leaves it, a step would take ten minutes; so validation does not come first either."""
    config = checked(started(PPO, "policy", step_rm, "train.parquet", "val.parquet", **knobs)[0])
    assert (config.pspo.actor.num_gpus, config.pspo.actor.cpu_threads) == (gpus, threads)
    assert config.trainer.val_before_train is False


# ---- CPU ----


@pytest.mark.parametrize("shape", length_study.SHAPES)
def test_every_shape_of_the_study_is_a_configuration_that_works(started, step_rm, tmp_path, shape):
    run = length_study.Run("lenient", shape, 3)
    words = length_study.arguments(run, tmp_path)
    assert words[3] == str(tmp_path / "step_rm_lenient" / "model")
    words[3] = str(step_rm)
    (call,) = started("train_cpu.sh", *words, SEED="3", **length_study.KNOBS)
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
