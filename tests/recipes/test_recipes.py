# SPDX-License-Identifier: Apache-2.0
"""What recipes start is what the papers say and passes the checks; DRY_RUN=1 plans it; mistakes are one line."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
import yaml
from recipe_calls import RECIPES, calls_of, compose_sft, differences, name_of, overrides_of, variants_of, wanted_of
from transformers import BertConfig, BertForSequenceClassification

from prime_ext import doctor
from prime_ext.config.compose import compose_config
from prime_ext.offline_prm.__main__ import compose as compose_offline
from prime_ext.preflight.check import check_config
from prime_ext.step_rm.description import FILE, Description, PairFormat
from prime_ext.step_rm.labels import ID2LABEL, LABEL2ID, LABELS
from recipes.prime import code_rows
from recipes.pspo_wrs.data import LABELS as LABELERS
from recipes.studies.report import read_study
from recipes.studies.through_verl import VERL_TASKS
from recipes.tiny_model import byte_tokenizer

PAPERS = {name: yaml.safe_load((RECIPES / name / "paper.yaml").read_text()) for name in ("prime", "pspo_wrs")}
ROWS = [pytest.param(name, recipe, id=name_of(recipe)) for name, paper in PAPERS.items() for recipe in paper["recipes"]]
STUDIES = ("choices", "guards", "comparison", "length", "agent", "agent_stopping")
VERL_RUNS = [(name, method) for name in STUDIES for method in read_study(name)["methods"]]
PPO, SFT = "pspo_wrs/run_abel-7b_ppo_fsdp.sh", "prime/run_eurus2-7b_sft_fsdp.sh"
SUPERVISED = ("pspo_wrs/run_abel-7b_sft_fsdp.sh", "pspo_wrs/run_bert-large_step-rm_ddp.sh", SFT)
PLANNED = {
    name: ["GAIR/Abel-7B-002", "no/step_rm", "no.parquet", "no.parquet"] if name == PPO else []
    for name in (f"{path.parent.name}/{path.name}" for path in RECIPES.glob("[adp]*/run_*.sh"))
    if name not in SUPERVISED and "eurusprm" not in name
}


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
def data(tmp_path):
    """A file that is there; so are GSM8K's rows, which would be made first."""
    (tmp_path / "out" / "data").mkdir(parents=True)
    for name in ("data.parquet", "out/data/train.parquet", "out/data/test.parquet"):
        (tmp_path / name).touch()
    return tmp_path / "data.parquet"


def composed(call):
    """The configuration of a training run, after the checks found nothing."""
    # torchrun's own options come before the module that it runs.
    module = [word for before, word in pairwise(call) if before == "-m"][-1]
    overrides, name = overrides_of(call, module)
    if module == "prime_ext.offline_prm":
        return compose_offline([*overrides, "trainer.device=cuda"])[0]
    if module == "verl.trainer.sft_trainer":
        return compose_sft(overrides)
    if module == "prime_ext.step_rm.train":
        return compose_config("step_rm", overrides)
    config = compose_config(name, overrides)
    assert check_config(config) == []
    return config


def planned(capsys, folder, script, *words, **knobs):
    """Exit status and plan of a dry run, made in this process, which has loaded everything."""
    (call,) = calls_of(folder, script, *words, DRY_RUN="1", **knobs)
    assert call[:3] == ["-m", "prime_ext.doctor", "--plan"]
    return doctor.main([*call[2:], "--json"]), json.loads(capsys.readouterr().out)


# ---- what the papers say ----


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recipe"), ROWS)
def test_a_recipe_is_what_its_paper_says(name, recipe, data, step_rm, tmp_path):
    script, own = f"{name}/{recipe['script']}", "trainer.project_name=mine"
    words = ["policy", step_rm, "train.parquet", "val.parquet"] if script == PPO else recipe.get("words", [])
    # The last word of all is the user's.
    words = [*words, own] if name == "prime" else words
    knobs = {"TRAIN_FILES": str(data), "VAL_FILES": str(data), **recipe.get("knobs", {})}
    if name == "pspo_wrs":
        knobs.pop("VAL_FILES")
    call = calls_of(tmp_path, script, *words, **knobs)[-1]
    assert name != "prime" or own in call
    assert differences(composed(call), wanted_of(PAPERS[name], recipe)) == {}


@pytest.mark.parametrize(("script", "default"), [("prime/run_eurus2-7b_fsdp.sh", "prime"), (PPO, "weibull")])
def test_every_variant_and_every_script_is_in_the_table(script, default):
    folder, name = script.split("/")
    rows = PAPERS[folder]["recipes"]
    named = {row.get("knobs", {}).get("VARIANT", default) for row in rows if row["script"] == name}
    assert variants_of(script) == named
    assert {path.name for path in (RECIPES / folder).glob("run_*.sh")} == {row["script"] for row in rows}


# ---- other choices ----


@pytest.mark.parametrize(
    ("overrides", "knobs", "gpus", "threads"),
    [
        (["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8"], {}, 1, None),
        (["algorithm.adv_estimator=rloo", "actor_rollout_ref.rollout.n=4"], {}, 1, None),
        (["chain@pspo=cn_ppo"], {"LORA": "16"}, 1, None),
        ([], {"SCORER": "http://host:8000"}, 0, None),
        # With one thread, which Ray leaves it, a step would take ten minutes; so validation does not come first either.
        ([], {"SCORER_GPUS": "0"}, 0, 16),
        ([], {"SCORER_GPUS": "0.2", "N_GPUS": "8", "TRAIN_BATCH": "128", "MINI_BATCH": "32"}, 0.2, None),
    ],
)
def test_choices_of_the_ppo_recipe_would_start(tmp_path, step_rm, overrides, knobs, gpus, threads):
    config = composed(
        calls_of(tmp_path, PPO, "policy", step_rm, "train.parquet", "val.parquet", *overrides, **knobs)[0]
    )
    # A server has no process on the nodes.
    actor = config.step_scorer.get("actor") or {"num_gpus": 0, "cpu_threads": None}
    assert (actor["num_gpus"], actor["cpu_threads"]) == (gpus, threads)
    assert config.trainer.val_before_train is False


def test_a_model_without_a_chat_template_gets_one_where_it_starts(tmp_path):
    asked, tokenizer = {"role": "user", "content": "1 + 1?"}, byte_tokenizer(None)
    for script, key in ((PPO, "actor_rollout_ref.model"), (SUPERVISED[0], "model")):
        for policy, knobs, has in (
            ("GAIR/Abel-7B-002", {}, True),
            ("other", {}, False),
            ("other", {"CHAT_TEMPLATE": str(RECIPES / "pspo_wrs" / "question_answer.jinja")}, True),
            ("GAIR/Abel-7B-002", {"CHAT_TEMPLATE": ""}, False),
        ):
            words = [policy, "rm", "a.parquet", "b.parquet"] if script == PPO else [policy, "a.parquet"]
            call = calls_of(tmp_path, script, *words, **knobs)[-1]
            override = [word for word in call if word.startswith(f"{key}.custom_chat_template=")]
            assert len(override) == has
            if has and script != PPO:
                tokenizer.chat_template = compose_sft(override).model.custom_chat_template
                prompt = tokenizer.apply_chat_template([asked], tokenize=False, add_generation_prompt=True)
                assert prompt.endswith("Question:\n1 + 1?\nAnswer:\n")


@pytest.mark.parametrize(
    ("model", "gpus", "offloads"), [("Qwen2.5-0.5B", 8, False), ("a-7B", 8, True), ("0.5b", 1, True)]
)
def test_gsm8k_keeps_two_checkpoints_and_offloads_what_does_not_fit(data, tmp_path, model, gpus, offloads):
    config = composed(calls_of(tmp_path, "prime_gsm8k.sh", f"org/{model}", N_GPUS=str(gpus))[-1])
    assert config.trainer.max_actor_ckpt_to_keep == 2
    assert config.actor_rollout_ref.actor.fsdp_config.optimizer_offload is offloads


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), VERL_RUNS)
def test_every_method_of_a_study_would_start(tmp_path, step_rm, name, method):
    study = read_study(name)
    for labeler in LABELERS:
        (tmp_path / f"step_rm_{labeler}").mkdir()
        (tmp_path / f"step_rm_{labeler}" / "model").symlink_to(step_rm)
    task = VERL_TASKS[study["through_verl"]](study, tmp_path)
    command, knobs = task.command(study["methods"][method][0], 3, tmp_path / "run")
    config = composed(calls_of(tmp_path, Path(command[1]).relative_to(RECIPES), *command[2:], **knobs)[0])
    assert config.data.seed == config.actor_rollout_ref.rollout.seed == 3
    assert config.trainer.total_training_steps == study["steps"] and config.trainer.max_actor_ckpt_to_keep is None


# ---- plans ----


@pytest.mark.parametrize("script", sorted(PLANNED))
def test_a_dry_run_says_that_it_fits_without_data_or_models(script, tmp_path, capsys):
    status, plan = planned(capsys, tmp_path, script, *PLANNED[script], STEPS="170")
    assert status == 0 and plan["warnings"] == [] and plan["not_here"]
    assert 0 < plan["peak"]["bytes"] < plan["device_bytes"]
    assert list(plan["seconds"]) == ["A100", "H100", "H200"] and min(plan["seconds"].values()) > 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("script", "words"),
    [(SFT, ["a.parquet"]), ("train_implicit_prm.sh", ["m", "a.parquet"]), (SUPERVISED[1], ["m", "a.parquet"])],
)
def test_a_dry_run_of_a_run_without_rollouts_prints_its_command(tmp_path, script, words):
    command = ["bash", str(RECIPES / script), *words]
    environment = {**os.environ, "DRY_RUN": "1", "PYTHON": "python", "N_PROC": "8", "OUTPUT_DIR": str(tmp_path / "out")}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(said) == 2 and "planned for RL runs only" in said[0] and "torch.distributed.run" in said[1]
    assert not list(tmp_path.rglob("*.jsonl"))


# ---- mistakes ----


@pytest.mark.parametrize(
    ("script", "words", "knobs", "hint"),
    [
        ("prime/run_eurus2-7b_fsdp.sh", [], {"TRAIN_FILES": "none.parquet"}, "none.parquet does not exist"),
        ("prime/run_eurusprm-stage1_fsdp.sh", [], {"TRAIN_FILES": "none.parquet"}, "none.parquet does not exist"),
        ("prime/run_eurus2-7b_fsdp.sh", [], {"VARIANT": "rlo"}, "VARIANT=rlo"),
        ("prime/run_eurus2-7b_fsdp.sh", [], {"ENGINE": "deep", "DRY_RUN": "1"}, "ENGINE=deep"),
        ("prime/run_qwen2.5-math-7b_zero_fsdp.sh", [], {"SIZE": "3b"}, "SIZE=3b"),
        ("prime/run_qwen2.5-0.5b_gsm8k_fsdp.sh", [], {"GPU": "40"}, "GPU=40"),
        ("multi_node/run_eurus2-7b_megatron.sh", [], {"SHRINK": "1"}, "SHRINK=1"),
        (PPO, list("abcd"), {"VARIANT": "weibul"}, "VARIANT=weibul"),
        (PPO, list("abc"), {}, "give 4 arguments"),
        ("pspo_wrs/run_bert-large_step-rm_ddp.sh", list("ab"), {"EFFECTIVE_BATCH": "100"}, "EFFECTIVE_BATCH=100"),
        ("eval_eurus2.sh", ["m"], {"DECODING": "beams"}, "DECODING"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_trained(tmp_path, script, words, knobs, hint):
    out = tmp_path / "out"
    environment = {**os.environ, "PYTHON": sys.executable, "OUTPUT_DIR": str(out), "OUT": str(out), **knobs}
    command = ["bash", str(RECIPES / script), *words]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2 and hint in done.stderr.splitlines()[-1], done.stderr
    assert not list(out.rglob("*.jsonl"))


def test_code_rows_are_taken_out_of_the_papers_data(tmp_path):
    rows = [{"ability": ability, "prompt": str(number)} for number, ability in enumerate(["math", "code", "code"])]
    for split in code_rows.SPLITS:
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / f"{split}.parquet", row_group_size=2)
    code_rows.main([str(tmp_path), str(tmp_path / "code")])
    assert parquet.read_table(tmp_path / "code" / "train.parquet").to_pylist() == rows[1:]
    parquet.write_table(pa.Table.from_pylist(rows[:1]), tmp_path / "train.parquet")
    with pytest.raises(SystemExit, match="has no row whose ability is code"):
        code_rows.main([str(tmp_path), str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()
