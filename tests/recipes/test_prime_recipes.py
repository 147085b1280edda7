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
from omegaconf import OmegaConf

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


def name_of(recipe):
    return " ".join([recipe["script"], *(f"{key}={value}" for key, value in recipe.get("knobs", {}).items())])


@pytest.mark.parametrize("recipe", PAPER["recipes"], ids=name_of)
def test_a_recipe_is_what_the_paper_says(recipe, tmp_path):
    # An interpreter that only writes down what it is called with.
    stub, call = tmp_path / "python", tmp_path / "call"
    stub.write_text(f'#!/usr/bin/env bash\nprintf "%s\\0" "$@" > {call}\n')
    stub.chmod(0o755)
    data = tmp_path / "data.parquet"
    data.touch()
    knobs = {"TRAIN_FILES": str(data), "VAL_FILES": str(data), "OUTPUT_DIR": str(tmp_path / "out")}
    done = run(recipe["script"], "data.seed=7", **{**knobs, **recipe.get("knobs", {}), "PYTHON": str(stub)})
    assert done.returncode == 0, done.stderr
    module, name, *overrides = call.read_text().split("\0")[1:-1]
    assert (module, name) == ("prime_ext.train", "--config-name=prime_trainer") and "data.seed=7" in overrides
    config = compose_config("prime_trainer", overrides)
    assert check_config(config) == []
    wanted = {key: value for part in recipe["parts"] for key, value in PAPER[part].items()} | recipe["values"]
    found = {key: OmegaConf.select(config, key) for key in wanted}
    assert {key: value for key, value in found.items() if value != wanted[key]} == {}


def test_every_variant_of_the_script_is_in_the_table():
    branches = (RECIPES / "run_eurus2-7b_fsdp.sh").read_text().split('case "$VARIANT" in')[1].split("esac")[0]
    assert {line.split(")")[0].strip() for line in branches.splitlines() if ") options=" in line} == VARIANTS


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
