# SPDX-License-Identifier: Apache-2.0
"""Recipes start the papers' settings and pass the checks; DRY_RUN=1 plans; one-line errors."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import yaml
from omegaconf import OmegaConf
from recipe_calls import (
    RECIPES,
    compose_sft,
    differences,
    get_calls,
    get_name,
    get_overrides,
    get_variants,
    get_wanted,
)

from prime_ext import doctor
from prime_ext.config.compose import compose_config
from prime_ext.config.verl_keys import UNREAD
from prime_ext.preflight.check import check_config, check_files, compose_for_verl
from prime_ext.run.ray_cluster import check_ray
from prime_ext.verl_adapter.offline_prm.program import compose as compose_offline
from recipes.prime import code_rows
from recipes.pspo_wrs.pspo_data import LABELS as LABELERS
from recipes.smoke.prepare import overrides as shrink
from recipes.smoke.prepare import prepare, read_words
from recipes.studies.study_report import read_study
from recipes.studies.through_verl import VERL_TASKS
from recipes.tiny_model import byte_tokenizer, write_model

PAPERS = {
    name: yaml.safe_load((RECIPES / name / "paper.yaml").read_text())
    for name in ("prime", "pspo_wrs")
}
ROWS = [
    pytest.param(name, recipe, id=get_name(recipe))
    for name, paper in PAPERS.items()
    for recipe in paper["recipes"]
]
STUDIES = ("choices", "guards", "comparison", "length", "agent", "agent_stopping")
VERL_RUNS = [(name, method) for name in STUDIES for method in read_study(name)["methods"]]
PPO = "pspo_wrs/run_abel-7b_ppo_fsdp.sh"
SFT = "prime/run_eurus2-7b_sft_fsdp.sh"
SUPERVISED = ("pspo_wrs/run_abel-7b_sft_fsdp.sh", "pspo_wrs/run_bert-large_step-rm_ddp.sh", SFT)
PLANNED = {
    name: ["GAIR/Abel-7B-002", "no/step_rm", "no.parquet", "no.parquet"] if name == PPO else []
    for name in (f"{path.parent.name}/{path.name}" for path in RECIPES.glob("[adep]*/run_*.sh"))
    if name not in SUPERVISED and "eurusprm" not in name
}

NO_FILES = {"TRAIN_FILES": "[]", "VAL_FILES": "[]"}
GPU_RUNS = {**PLANNED, "prime_gsm8k.sh": ["org/model"], "multi_node/run_eurus2-7b_megatron.sh": []}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Make a model, the same without a chat template, a step reward model and rows, all tiny."""
    folder = tmp_path_factory.mktemp("inputs")
    write_model(folder / "model")
    prepare("pspo", folder)
    shutil.copytree(folder / "model", folder / "bare")
    (folder / "bare" / "chat_template.jinja").unlink()
    (folder / "policy").symlink_to(folder / "model")
    return folder


@pytest.fixture(scope="module")
def step_rm(inputs):
    return inputs / "step_rm"


@pytest.fixture
def data(tmp_path):
    """Return an existing file; GSM8K's rows exist too, because a recipe would make them first."""
    (tmp_path / "out" / "data").mkdir(parents=True)
    for name in ("data.parquet", "out/data/train.parquet", "out/data/test.parquet"):
        (tmp_path / name).touch()
    return tmp_path / "data.parquet"


def composed(call):
    """Return the configuration of a training run, after the checks found nothing."""
    # torchrun's own options come before the module that it runs.
    module = [word for before, word in pairwise(call) if before == "-m"][-1]
    overrides, name = get_overrides(call, module)
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
    """Return exit status and plan of a dry run in this process, which has loaded everything."""
    (call,) = get_calls(folder, script, *words, DRY_RUN="1", **knobs)
    assert call[:3] == ["-m", "prime_ext.doctor", "--plan"]
    return doctor.main([*call[2:], "--json"]), json.loads(capsys.readouterr().out)


# ---- what the papers say ----


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recipe"), ROWS)
def test_a_recipe_is_what_its_paper_says(name, recipe, data, step_rm, tmp_path):
    script = f"{name}/{recipe['script']}"
    own = "trainer.project_name=mine"
    words = (
        ["policy", step_rm, "train.parquet", "val.parquet"]
        if script == PPO
        else recipe.get("words", [])
    )
    # The user's words come last.
    words = [*words, own] if name == "prime" else words
    knobs = {"TRAIN_FILES": str(data), "VAL_FILES": str(data), **recipe.get("knobs", {})}
    if name == "pspo_wrs":
        knobs.pop("VAL_FILES")
    call = get_calls(tmp_path, script, *words, **knobs)[-1]
    assert name != "prime" or own in call
    assert differences(composed(call), get_wanted(PAPERS[name], recipe)) == {}


@pytest.mark.parametrize(
    ("script", "default"), [("prime/run_eurus2-7b_fsdp.sh", "prime"), (PPO, "weibull")]
)
def test_every_variant_and_every_script_is_in_the_table(script, default):
    folder, name = script.split("/")
    rows = PAPERS[folder]["recipes"]
    named = {row.get("knobs", {}).get("VARIANT", default) for row in rows if row["script"] == name}
    assert get_variants(script) == named
    assert {path.name for path in (RECIPES / folder).glob("run_*.sh")} == {
        row["script"] for row in rows
    }


@pytest.mark.parametrize("name", PAPERS)
def test_papers_name_no_setting_that_verl_ignores(name):
    keys = {key for part in PAPERS[name].values() if isinstance(part, dict) for key in part}
    rows = {key for row in PAPERS[name]["recipes"] for key in row.get("values", {})}
    assert (keys | rows) & UNREAD.keys() == set()


# ---- what a machine needs ----


# Rows of environments are episodes: test_smoke_runs.py.
@pytest.mark.slow
@pytest.mark.parametrize(
    "script", sorted(name for name in GPU_RUNS if not name.startswith("environment/"))
)
def test_gpu_runs_report_missing_parts_before_they_start(script, inputs, tmp_path, monkeypatch):
    monkeypatch.delenv("VERL_PLATFORM")
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr("prime_ext.preflight.file_checks.has_flash_attention", lambda: True)
    call = get_calls(tmp_path, script, *GPU_RUNS[script], **NO_FILES)[-1]
    words, name = get_overrides(call, "prime_ext.train")
    rows = [str(inputs / "train.parquet")] * 4
    family = name.partition("_")[0]
    words += [
        f"data.train_files={rows}",
        f"data.val_files={rows[:1]}",
        "trainer.total_training_steps=1",
    ]
    words += [
        f"actor_rollout_ref.model.path={inputs / 'policy'}",
        "modules=[recipes.smoke.smoke_verifier]",
    ]
    config = compose_for_verl(name, [*words, *read_words(family, inputs)])
    assert [*check_config(config), *check_ray(config), *check_files(config)] == []
    # It takes a process of its own each time.
    monkeypatch.setattr("prime_ext.preflight.file_checks._try_verifier", lambda *_: "")

    def problems_with(**changes):
        changed = config.copy()
        for key, value in changes.items():
            OmegaConf.update(
                changed, f"actor_rollout_ref.{key.replace('__', '.')}", value, force_add=True
            )
        return [*check_config(changed), *check_files(changed)]

    # The recipe for models from before chat templates brings one.
    lines = problems_with(model__path=str(inputs / "bare"))
    assert len(lines) == (script != PPO) and all(
        "has no chat template; set actor_rollout" in line for line in lines
    )
    lines = problems_with(model__lora_rank=8)
    fewer = problems_with(model__lora_rank=8, rollout__load_format="safetensors")
    assert [
        line for line in lines if line not in fewer and "load_format=dummy leaves the model" in line
    ]
    monkeypatch.setattr("prime_ext.preflight.file_checks.has_flash_attention", lambda: False)
    lines = problems_with()
    assert all("flash-attn is not installed" in line for line in lines) and len(lines) == 1 + (
        script == PPO
    )
    sdpa = {"attn_implementation": "sdpa"}
    if "prm" in config:
        # The configuration is resolved, so the PRM does not follow any more.
        OmegaConf.update(config, "prm.model.override_config", sdpa, force_add=True)
    assert problems_with(model__override_config=sdpa) == lines[1:]


# Functions of the driver that vLLM's libraries refer to.
DRIVER = """
cuCtxGetCurrent cuCtxSetCurrent cuDeviceGetAttribute cuDevicePrimaryCtxRetain cuGetErrorString
cuGetProcAddress_v2
cuMemAddressFree cuMemAddressReserve cuMemCreate cuMemGetAllocationGranularity cuMemMap
cuMemRelease cuMemSetAccess
cuMemUnmap cuPointerGetAttribute cuTensorMapEncodeTiled
""".split()


@pytest.mark.skipif(
    not find_spec("vllm") or "cpu" in version("vllm"),
    reason="needs vLLM's CUDA build, see tests/gpu/README.md",
)
def test_vllm_makes_the_engine_of_every_gpu_run(tmp_path, monkeypatch):
    monkeypatch.delenv("VERL_PLATFORM")
    library = tmp_path / "libcuda.so.1"
    compiler = [
        "cc",
        "-shared",
        "-fPIC",
        "-w",
        "-Wl,-soname,libcuda.so.1",
        "-x",
        "c",
        "-",
        "-o",
        library,
    ]
    subprocess.run(
        compiler,
        input="".join(f"int {name}() {{ return 1; }}" for name in DRIVER),
        text=True,
        check=True,
    )
    adapter = [
        "actor_rollout_ref.model.lora_rank=32",
        "actor_rollout_ref.rollout.load_format=safetensors",
    ]
    runs = {**GPU_RUNS, "prime_gsm8k.sh": ["Qwen/Qwen2.5-0.5B-Instruct", *adapter]}
    sections = []
    for script, words in sorted(runs.items()):
        sections.append(
            composed(get_calls(tmp_path, script, *words, **NO_FILES)[-1]).actor_rollout_ref
        )
        model = sections[-1].model
        model.path = str(RECIPES / "model_configs" / Path(model.path).name)
    prepare("prime", tmp_path)
    shrunk = shrink("prime", tmp_path, rollout="vllm")
    sections.append(compose_config("prime_trainer", shrunk).actor_rollout_ref)
    files = [tmp_path / f"{index}.yaml" for index in range(len(sections))]
    for section, file in zip(sections, files, strict=True):
        OmegaConf.save(section, file)
    program = [
        sys.executable,
        RECIPES.parent / "tests" / "gpu" / "vllm_engines.py",
        library,
        *files,
    ]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    for section, engine in zip(sections, json.loads(done.stdout.splitlines()[-1]), strict=True):
        rollout = section.rollout
        longest = engine.pop("max_model_len")
        assert longest >= rollout.prompt_length + rollout.response_length
        blocks = rollout.engine_kwargs.vllm.get("num_gpu_blocks_override")
        assert engine.pop("num_gpu_blocks_override") == blocks
        assert engine == {name: rollout.get(name, section.model.get(name)) for name in engine}


# ---- other choices ----

WITHOUT_CRITIC = ["algorithm.adv_estimator=rloo", "actor_rollout_ref.rollout.n=8"]


@pytest.mark.parametrize(
    ("overrides", "knobs", "gpus", "threads"),
    [
        ([*WITHOUT_CRITIC, "prime.process.estimator=grpo"], {}, 1, None),
        ([*WITHOUT_CRITIC, "prime.process.estimator=rloo"], {}, 1, None),
        (["chain@prime.process=cn_ppo"], {"LORA": "16"}, 1, None),
        ([], {"SCORER": "http://host:8000"}, 0, None),
        # Ray's one thread would take ten minutes a step; so validation does not come first either.
        ([], {"SCORER_GPUS": "0"}, 0, 16),
        ([], {"SCORER_GPUS": "0.2", "N_GPUS": "8", "TRAIN_BATCH": "128", "MINI_BATCH": "32"}, 0.2,
         None),
    ],
)  # fmt: skip
def test_choices_of_the_ppo_recipe_would_start(tmp_path, step_rm, overrides, knobs, gpus, threads):
    config = composed(
        get_calls(
            tmp_path, PPO, "policy", step_rm, "train.parquet", "val.parquet", *overrides, **knobs
        )[0]
    )
    # A server has no process on the nodes.
    actor = config.step_scorer.get("actor") or {"num_gpus": 0, "cpu_threads": None}
    assert (actor["num_gpus"], actor["cpu_threads"]) == (gpus, threads)
    assert config.trainer.val_before_train is False


@pytest.mark.parametrize(
    ("model", "knobs", "thinks"),
    [
        ("Qwen/Qwen3-0.6B", {}, False),
        ("Qwen/Qwen3-0.6B", {"THINKING": "true"}, True),
        ("Qwen/Qwen3-0.6B", {"THINKING": ""}, None),
        # Their templates have no such variable.
        ("Qwen/Qwen3-4B-Instruct-2507", {}, None),
        ("Qwen/Qwen2.5-0.5B-Instruct", {}, None),
        ("other/thinker", {"THINKING": "false"}, False),
    ],
)
def test_qwen3_is_trained_without_thoughts_unless_asked(data, tmp_path, model, knobs, thinks):
    config = composed(get_calls(tmp_path, "prime_gsm8k.sh", model, **knobs)[-1])
    options = {} if thinks is None else {"enable_thinking": thinks}
    assert config.data.apply_chat_template_kwargs == options


def test_models_without_a_chat_template_get_one_at_the_start(tmp_path):
    asked = {"role": "user", "content": "1 + 1?"}
    tokenizer = byte_tokenizer(None)
    for script, key in ((PPO, "actor_rollout_ref.model"), (SUPERVISED[0], "model")):
        for policy, knobs, has in (
            ("GAIR/Abel-7B-002", {}, True),
            ("other", {}, False),
            ("other", {"CHAT_TEMPLATE": str(RECIPES / "pspo_wrs" / "question_answer.jinja")}, True),
            ("GAIR/Abel-7B-002", {"CHAT_TEMPLATE": ""}, False),
        ):
            words = (
                [policy, "rm", "a.parquet", "b.parquet"] if script == PPO else [policy, "a.parquet"]
            )
            call = get_calls(tmp_path, script, *words, **knobs)[-1]
            override = [word for word in call if word.startswith(f"{key}.custom_chat_template=")]
            assert len(override) == has
            if has and script != PPO:
                tokenizer.chat_template = compose_sft(override).model.custom_chat_template
                prompt = tokenizer.apply_chat_template(
                    [asked], tokenize=False, add_generation_prompt=True
                )
                assert prompt.endswith("Question:\n1 + 1?\nAnswer:\n")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), VERL_RUNS)
def test_every_method_of_a_study_would_start(tmp_path, step_rm, name, method):
    study = read_study(name)
    for labeler in LABELERS:
        (tmp_path / f"step_rm_{labeler}").mkdir()
        (tmp_path / f"step_rm_{labeler}" / "model").symlink_to(step_rm)
    task = VERL_TASKS[study["through_verl"]](study, tmp_path)
    command, knobs = task.command(study["methods"][method][0], 3, tmp_path / "run")
    config = composed(
        get_calls(tmp_path, Path(command[1]).relative_to(RECIPES), *command[2:], **knobs)[0]
    )
    assert config.data.seed == config.actor_rollout_ref.rollout.seed == 3
    assert (
        config.trainer.total_training_steps == study["steps"]
        and config.trainer.max_actor_ckpt_to_keep is None
    )


# ---- plans ----


@pytest.mark.parametrize("script", sorted(PLANNED))
def test_a_dry_run_plans_without_data_or_models(script, tmp_path, capsys):
    status, plan = planned(capsys, tmp_path, script, *PLANNED[script], STEPS="170")
    assert status == 0 and plan["warnings"] == [] and plan["not_here"]
    assert 0 < plan["peak"]["bytes"] < plan["device_bytes"]
    assert not (tmp_path / "out").exists()


def test_prime_d_with_7b_fits_as_its_page_says(tmp_path, capsys):
    page = (RECIPES / "prime" / "README.md").read_text()
    assert "TOKENS_PER_GPU=8192 bash recipes/prime/run_eurus2-7b_fsdp.sh variant=distilled" in page
    words = ("prime/run_eurus2-7b_fsdp.sh", "variant=distilled")
    status, plan = planned(capsys, tmp_path, *words, TOKENS_PER_GPU="8192")
    assert status == 0 and set(plan["facts"]["tokens per micro-batch and device"].values()) == {
        8192
    }


def test_a_plan_counts_experts_that_a_token_uses(tmp_path, capsys):
    status, plan = planned(capsys, tmp_path, "prime_gsm8k.sh", "Qwen/Qwen3-30B-A3B")
    facts = plan["facts"]
    assert facts["parameters"]["policy"] == 30_532_122_624
    assert facts["parameters that a token uses"]["PRM"] == 3_353_032_704
    # Policy and PRM with Adam's states in float32 are 733 GB: not for eight devices of 80 GB.
    assert status == 1 and any("needs about" in warning for warning in plan["warnings"])
    _, plan = planned(capsys, tmp_path, "prime_gsm8k.sh", "Qwen/Qwen3-0.6B")
    assert "parameters that a token uses" not in plan["facts"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (SFT, ["a.parquet"]),
        ("train_implicit_prm.sh", ["m", "a.parquet"]),
        (SUPERVISED[1], ["m", "a.parquet"]),
    ],
)
def test_a_dry_run_without_rollouts_prints_its_command(tmp_path, script, words):
    command = ["bash", str(RECIPES / script), *words]
    environment = {
        **os.environ,
        "DRY_RUN": "1",
        "PYTHON": "python",
        "N_PROC": "8",
        "OUTPUT_DIR": str(tmp_path / "out"),
    }
    said = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert (
        len(said) == 2
        and "planned for RL runs only" in said[0]
        and "torch.distributed.run" in said[1]
    )
    assert not list(tmp_path.rglob("*.jsonl"))


# ---- mistakes ----


@pytest.mark.parametrize(
    ("script", "words", "knobs", "hint"),
    [
        ("prime/run_eurus2-7b_fsdp.sh", [], {"TRAIN_FILES": "none.parquet"},
         "none.parquet does not exist"),
        ("prime/run_eurusprm-stage1_fsdp.sh", [], {"TRAIN_FILES": "none.parquet"},
         "none.parquet does not exist"),
        ("prime/run_eurus2-7b_fsdp.sh", [], {"VARIANT": "rlo"}, "VARIANT=rlo"),
        ("prime/run_eurus2-7b_fsdp.sh", [], {"ENGINE": "deep", "DRY_RUN": "1"}, "ENGINE=deep"),
        ("prime/run_qwen2.5-math-7b_zero_fsdp.sh", [], {"SIZE": "3b"}, "SIZE=3b"),
        ("prime/run_qwen2.5-0.5b_gsm8k_fsdp.sh", [], {"GPU": "40"}, "GPU=40"),
        ("prime_gsm8k.sh", ["m"], {"THINKING": "0"}, "THINKING=0 must be true, false or empty"),
        ("multi_node/run_eurus2-7b_megatron.sh", [], {"SHRINK": "1"}, "SHRINK=1"),
        (PPO, list("abcd"), {"VARIANT": "weibul"}, "VARIANT=weibul"),
        (PPO, list("abc"), {}, "give POLICY STEP_RM TRAIN VAL"),
        ("pspo_wrs/run_bert-large_step-rm_ddp.sh", list("ab"), {"EFFECTIVE_BATCH": "100"},
         "EFFECTIVE_BATCH=100"),
        ("eval_eurus2.sh", ["m"], {"DECODING": "beams"}, "DECODING"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_nothing_is_trained(tmp_path, script, words, knobs, hint):
    out = tmp_path / "out"
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "OUTPUT_DIR": str(out),
        "OUT": str(out),
        **knobs,
    }
    command = ["bash", str(RECIPES / script), *words]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 2 and hint in done.stderr.splitlines()[-1], done.stderr
    assert not list(out.rglob("*.jsonl"))


@pytest.mark.parametrize("script", SUPERVISED[::2])
def test_supervised_runs_need_flash_attention_or_another_attention(script, tmp_path):
    """With an interpreter that has no package and fails when it trains."""
    (tmp_path / "python").write_text("#!/bin/sh\n[ $1 != -m ] || echo trains >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "train.parquet").touch()
    environment = {
        **{name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"},
        "PYTHON": str(tmp_path / "python"),
        "OUTPUT_DIR": str(tmp_path / "out"),
    }
    data = str(tmp_path / "train.parquet")
    command = ["bash", str(RECIPES / script), *(["m", data] if script != SFT else [data])]
    for attention, status, said in (
        ([], 2, "flash-attn is not installed: docs/how_to/install.md"),
        (["+model.override_config.attn_implementation=flash_attention_2"], 2, "flash-attn is not"),
        (["+model.override_config.attn_implementation=sdpa"], 1, "trains"),
    ):
        done = subprocess.run(
            [*command, *attention], env=environment, capture_output=True, text=True
        )
        assert done.returncode == status and said in done.stderr.splitlines()[-1], done.stderr


def test_code_rows_are_taken_out_of_the_papers_data(tmp_path):
    rows = [
        {"ability": ability, "prompt": str(number)}
        for number, ability in enumerate(["math", "code", "code"])
    ]
    for split in code_rows.SPLITS:
        parquet.write_table(
            pa.Table.from_pylist(rows), tmp_path / f"{split}.parquet", row_group_size=2
        )
    code_rows.main([str(tmp_path), str(tmp_path / "code")])
    assert parquet.read_table(tmp_path / "code" / "train.parquet").to_pylist() == rows[1:]
    parquet.write_table(pa.Table.from_pylist(rows[:1]), tmp_path / "train.parquet")
    with pytest.raises(SystemExit, match="has no row whose ability is code"):
        code_rows.main([str(tmp_path), str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()
