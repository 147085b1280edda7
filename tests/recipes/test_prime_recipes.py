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
"""The recipes of the PRIME paper: every script composes to what the paper says, passes the checks, and plans itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from recipe_calls import calls_of, differences, name_of, overrides_of, variants_of, wanted_of

from prime_ext.compose_config import compose_config
from prime_ext.preflight import check_config

RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "prime"
PAPER = yaml.safe_load((RECIPES / "paper.yaml").read_text())
# Variants of the script that are not in the table would drift unseen.
VARIANTS = {recipe.get("knobs", {}).get("VARIANT", "prime") for recipe in PAPER["recipes"]}


def run(script, *words, **knobs):
    environment = {**os.environ, "PYTHON": sys.executable, "HF_HUB_OFFLINE": "1", **knobs}
    command = ["bash", str(RECIPES / script), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("recipe", PAPER["recipes"], ids=name_of)
def test_a_recipe_is_what_the_paper_says(recipe, tmp_path):
    data = tmp_path / "data.parquet"
    data.touch()
    knobs = {"TRAIN_FILES": str(data), "VAL_FILES": str(data), **recipe.get("knobs", {})}
    (call,) = calls_of(tmp_path, f"prime/{recipe['script']}", "data.seed=7", **knobs)
    overrides, name = overrides_of(call, "prime_ext.train")
    assert name == "prime_trainer" and "data.seed=7" in overrides
    config = compose_config("prime_trainer", overrides)
    assert check_config(config) == []
    assert differences(config, wanted_of(PAPER, recipe)) == {}


def test_every_variant_of_the_script_is_in_the_table():
    assert variants_of("prime/run_eurus2-7b_fsdp.sh") == VARIANTS


def test_every_script_is_in_the_table():
    assert {path.name for path in RECIPES.glob("*.sh")} == {recipe["script"] for recipe in PAPER["recipes"]}


def test_a_dry_run_plans_without_data_or_models(tmp_path):
    knobs = {"DRY_RUN": "1", "OUTPUT_DIR": str(tmp_path / "out"), "MEAN_TOKENS": "1500"}
    done = run("run_eurus2-7b_fsdp.sh", **knobs)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    for text in ("policy 7,615,616,512", "PRM reference", "H200", "device hours", "checkpoint:", "fits:", "not here:"):
        assert text in done.stdout
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_what_would_not_start(tmp_path):
    done = run("run_eurus2-7b_fsdp.sh", "data.train_batch_size=100", DRY_RUN="1", OUTPUT_DIR=str(tmp_path / "out"))
    assert done.returncode == 1 and "data.train_batch_size=100" in done.stdout


def test_missing_data_and_unknown_variants_are_one_line(tmp_path):
    done = run("run_eurus2-7b_fsdp.sh", TRAIN_FILES=str(tmp_path / "none.parquet"), OUTPUT_DIR=str(tmp_path / "out"))
    assert done.returncode == 2 and "none.parquet does not exist; get the paper's data with: hf download" in done.stderr
    done = run("run_eurus2-7b_fsdp.sh", VARIANT="rlo")
    assert done.returncode == 2 and "VARIANT=rlo is unknown" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("script", sorted(path.name for path in RECIPES.glob("*.sh")))
def test_help_says_how_to_use_it(script):
    done = run(script, "--help")
    assert done.returncode == 0 and f"bash recipes/prime/{script}" in done.stdout and "Knobs" in done.stdout
