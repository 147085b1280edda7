# SPDX-License-Identifier: Apache-2.0
"""The data that recipes/prime_gsm8k.sh makes before it trains."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "data" / "fixtures" / "gsm8k"

# Runs the commands of data_preprocessing, and prints what would train.
PYTHON = """#!/usr/bin/env bash
case "$2" in
    data_preprocessing.*) exec "{python}" "$@" ;;
    *) printf '%s\\n' "$@" ;;
esac
"""


def run(folder, **environment):
    python = folder / "python"
    python.write_text(PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    knobs = {"PYTHON": str(python), "OUTPUT_DIR": str(folder / "out"), **environment}
    return subprocess.run(
        ["bash", str(ROOT / "recipes" / "prime_gsm8k.sh"), "some/model"],
        env={**os.environ, **knobs},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_gsm8k_is_made_from_local_files_and_used(tmp_path):
    done = run(tmp_path, GSM8K_DIR=str(FIXTURES), DEVICE="cpu")
    assert done.returncode == 0, done.stderr
    data = tmp_path / "out" / "data"
    assert f"data.train_files={data}/train.parquet" in done.stdout.splitlines()
    train, test = (pq.read_table(data / f"{split}.parquet").to_pylist() for split in ("train", "test"))
    # Only the row without an answer goes: none repeats another one or gives away a test row.
    assert [row["reward_model"]["ground_truth"] for row in train] == ["1020", "36", "-5", "140"]
    assert len(test) == 2
    assert [message["role"] for message in train[0]["prompt"]] == ["user"]
    assert train[0]["prompt"][0]["content"].endswith("\\boxed{Your answer}")


def test_data_that_are_there_are_not_made_again(tmp_path):
    assert run(tmp_path, GSM8K_DIR=str(FIXTURES), DEVICE="cpu").returncode == 0
    assert run(tmp_path, GSM8K_DIR=str(tmp_path / "nowhere"), DEVICE="cpu").returncode == 0


def test_missing_files_end_the_recipe_with_one_line(tmp_path):
    done = run(tmp_path, GSM8K_DIR=str(tmp_path / "nowhere"), DEVICE="cpu")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("pipeline: ") and "does not exist" in done.stderr
