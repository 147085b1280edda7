# SPDX-License-Identifier: Apache-2.0
"""The recipes of the PRIME paper: every script composes to what the paper says, passes the checks, and plans itself."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import yaml
from recipe_calls import calls_of, differences, name_of, overrides_of, variants_of, wanted_of

from prime_ext import doctor
from prime_ext.config.compose import SFT_CONFIG, compose_config
from prime_ext.offline_prm.__main__ import compose as compose_offline
from prime_ext.preflight.check import check_config
from prime_ext.preflight.sft import check_sft
from recipes.prime import code_rows

RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "prime"
PAPER = yaml.safe_load((RECIPES / "paper.yaml").read_text())
SCRIPTS = sorted(path.name for path in RECIPES.glob("*.sh"))
# Another kind of plan, in test_supervised_recipes.py.
SFT = "run_eurus2-7b_sft_fsdp.sh"
PLANNED = [script for script in SCRIPTS if script != SFT]
# Variants of the script that are not in the table would drift unseen.
VARIANTS = {
    recipe.get("knobs", {}).get("VARIANT", "prime")
    for recipe in PAPER["recipes"]
    if recipe["script"] == "run_eurus2-7b_fsdp.sh"
}


def run(script, *words, **knobs):
    environment = {**os.environ, "PYTHON": sys.executable, "HF_HUB_OFFLINE": "1", **knobs}
    command = ["bash", str(RECIPES / script), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


def called(folder, script, *words, **knobs):
    """The module that a script hands over to, its overrides, the name of its configuration, and its other words."""
    call = calls_of(folder, f"prime/{script}", *words, **knobs)[-1]
    # torchrun's own options come before the module that it runs.
    module = [word for before, word in pairwise(call) if before == "-m"][-1]
    return module, *overrides_of(call, module), call[call.index(module) + 1 :]


def planned(capsys, folder, script, *words, **knobs):
    """The plan of a dry run, made in this process, which has loaded everything; and its exit status."""
    module, _, _, arguments = called(folder, script, *words, DRY_RUN="1", **knobs)
    assert module == "prime_ext.doctor"
    status = doctor.main([*arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("recipe", PAPER["recipes"], ids=name_of)
def test_a_recipe_is_what_the_paper_says(recipe, tmp_path):
    data = tmp_path / "data.parquet"
    data.touch()
    # GSM8K's rows would be made first.
    (tmp_path / "out" / "data").mkdir(parents=True)
    for split in ("train", "test"):
        (tmp_path / "out" / "data" / f"{split}.parquet").touch()
    knobs = {"TRAIN_FILES": str(data), "VAL_FILES": str(data), **recipe.get("knobs", {})}
    own = "trainer.project_name=mine"
    module, overrides, name, _ = called(tmp_path, recipe["script"], *recipe.get("words", []), own, **knobs)
    assert own in overrides
    if recipe.get("config") == "offline_prm":
        assert module == "prime_ext.offline_prm"
        config, _ = compose_offline([*overrides, "trainer.device=cuda"])
    elif recipe.get("config") == SFT_CONFIG:
        assert module == "prime_ext.sft"
        config = compose_config(SFT_CONFIG, overrides)
        assert check_sft(config) == []
    else:
        assert (module, name) == ("prime_ext.train", "prime_trainer")
        config = compose_config(name, overrides)
        assert check_config(config) == []
    assert differences(config, wanted_of(PAPER, recipe)) == {}


def test_every_variant_of_the_script_is_in_the_table():
    assert variants_of("prime/run_eurus2-7b_fsdp.sh") == VARIANTS


def test_every_script_is_in_the_table():
    assert set(SCRIPTS) == {recipe["script"] for recipe in PAPER["recipes"]}


@pytest.mark.parametrize("script", PLANNED)
def test_a_dry_run_of_every_script_says_that_it_fits(script, tmp_path, capsys):
    status, plan = planned(capsys, tmp_path, script)
    assert status == 0 and plan["warnings"] == []
    assert plan["device_bytes"] > plan["peak"]["bytes"] and plan["checkpoint"]["PRM"] > 0
    # Hours of the whole run, on each kind of device.
    assert [hours["device"] for hours in plan["hours"]] == ["A100", "H100", "H200"]
    assert all(hours["run_hours"] > 0 for hours in plan["hours"])
    # Neither data nor models are here, and nothing was written.
    assert plan["not_here"] and not (tmp_path / "out").exists()


def test_a_dry_run_plans_without_data_or_models(tmp_path):
    knobs = {"DRY_RUN": "1", "OUTPUT_DIR": str(tmp_path / "out"), "MEAN_TOKENS": "1500"}
    done = run("run_eurus2-7b_fsdp.sh", **knobs)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    for text in ("policy 7,615,616,512", "PRM reference", "H200", "device hours", "checkpoint:", "fits:", "not here:"):
        assert text in done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("memory", ["24", "80", "141"])
def test_gsm8k_fits_the_gpu_that_it_is_for(memory, tmp_path, capsys):
    status, plan = planned(capsys, tmp_path, "run_qwen2.5-0.5b_gsm8k_fsdp.sh", GPU=memory)
    assert status == 0 and plan["device_bytes"] == int(memory) * 2**30
    # A tenth for what the plan does not know: the allocator, buffers.
    assert plan["peak"]["bytes"] < 0.9 * plan["device_bytes"]


def test_the_profile_of_a_larger_gpu_does_not_fit_the_smallest(tmp_path, capsys):
    status, plan = planned(capsys, tmp_path, "run_qwen2.5-0.5b_gsm8k_fsdp.sh", GPU="80", DEVICE_MEMORY="24")
    assert status == 1 and any("needs about" in warning for warning in plan["warnings"])


def test_an_adapter_spares_the_reference_and_most_of_the_states(tmp_path, capsys):
    _, whole = planned(capsys, tmp_path, "run_eurus2-7b_fsdp.sh")
    _, adapter = planned(capsys, tmp_path, "run_eurus2-7b_lora-prm_fsdp.sh")
    assert [part["name"] for part in whole["memory"]] == ["policy", "PRM", "PRM reference"]
    assert [part["name"] for part in adapter["memory"]] == ["policy", "PRM"]
    states = [part["memory"][1]["gradients"] + part["memory"][1]["optimizer"] for part in (whole, adapter)]
    assert states[1] < 0.02 * states[0]
    assert adapter["phases"]["PRM"] < 0.75 * whole["phases"]["PRM"]
    # Host memory of a device: weights and Adam's states of what waits.
    assert sum(part["host"] for part in adapter["memory"]) < 0.62 * sum(part["host"] for part in whole["memory"])
    assert adapter["checkpoint"]["PRM"] < 0.4 * whole["checkpoint"]["PRM"]


def test_missing_data_and_unknown_variants_are_one_line(tmp_path):
    done = run("run_eurus2-7b_fsdp.sh", TRAIN_FILES=str(tmp_path / "none.parquet"), OUTPUT_DIR=str(tmp_path / "out"))
    assert done.returncode == 2 and "none.parquet does not exist; get the paper's data with: hf download" in done.stderr
    done = run("run_eurusprm-stage1_fsdp.sh", TRAIN_FILES=str(tmp_path / "none.parquet"))
    assert done.returncode == 2 and "none.parquet does not exist; get the published data with: hf" in done.stderr
    done = run("run_eurus2-7b_fsdp.sh", VARIANT="rlo")
    assert done.returncode == 2 and "VARIANT=rlo is unknown" in done.stderr
    done = run("run_qwen2.5-0.5b_gsm8k_fsdp.sh", GPU="40")
    assert done.returncode == 2 and "GPU=40 must be 24, 80 or 141" in done.stderr
    assert not (tmp_path / "out").exists()


def test_code_rows_are_taken_out_of_the_papers_data(tmp_path, capsys):
    rows = [{"ability": ability, "prompt": str(number)} for number, ability in enumerate(["math", "code", "code"])]
    for split in code_rows.SPLITS:
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / f"{split}.parquet", row_group_size=2)
    code_rows.main([str(tmp_path), str(tmp_path / "code")])
    assert parquet.read_table(tmp_path / "code" / "train.parquet").to_pylist() == rows[1:]
    assert "validation.parquet: 2 rows" in capsys.readouterr().out
    parquet.write_table(pa.Table.from_pylist(rows[:1]), tmp_path / "train.parquet")
    with pytest.raises(SystemExit, match="has no row whose ability is code"):
        code_rows.main([str(tmp_path), str(tmp_path / "none")])
    assert not list((tmp_path / "none").iterdir())
