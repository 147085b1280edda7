# SPDX-License-Identifier: Apache-2.0
"""Modules that recipes start, data of a small run, and the recipe for verl's collection."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from prime_ext.config.compose import compose_config
from prime_ext.doctor import SUPPORTED_VERL

ROOT = Path(__file__).parents[2]
GSM8K = ROOT / "tests" / "data" / "fixtures" / "gsm8k"
# Runs the commands of data_preprocessing, and prints what would train.
PYTHON = f"""#!/usr/bin/env bash
[[ "$2" != data_preprocessing.* && "$2" != recipes.launch ]] || exec "{sys.executable}" "$@"
printf '%s\\n' "$@"
"""


@pytest.mark.parametrize(
    ("recipe", "evaluation"),
    [("quickstart", "evaluate"), ("agent", "play"), ("environment", "play")],
)
def test_every_module_that_a_script_starts_exists(recipe, evaluation):
    scripts = "".join(path.read_text() for path in (ROOT / "recipes").rglob("*.sh"))
    scripts = re.sub(r"\$\{?recipe\b\}?", recipe, scripts).replace("$evaluation", evaluation)
    modules = re.findall(r'-m "?((?:recipes|prime_ext|eval|data_preprocessing)\b[\w.]*)', scripts)
    assert len(modules) > 20 and [name for name in modules if find_spec(name) is None] == []


def test_gsm8k_is_made_once_from_local_files_and_used(tmp_path):
    python = tmp_path / "python"
    data = tmp_path / "out" / "data"
    python.write_text(PYTHON)
    python.chmod(0o755)

    def run(folder):
        knobs = {
            "PYTHON": str(python),
            "OUTPUT_DIR": str(tmp_path / "out"),
            "GSM8K_DIR": str(folder),
            "DEVICE": "cpu",
        }
        command = ["bash", str(ROOT / "recipes" / "prime_gsm8k.sh"), "some/model"]
        return subprocess.run(
            command, env={**os.environ, **knobs}, capture_output=True, text=True, timeout=600
        )

    done = run(tmp_path / "nowhere")
    assert done.returncode == 2 and "does not exist" in done.stderr.splitlines()[-1]
    done = run(GSM8K)
    assert done.returncode == 0, done.stderr
    assert f"data.train_files={data}/train.parquet" in done.stdout.splitlines()
    train, test = (
        pq.read_table(data / f"{split}.parquet").to_pylist() for split in ("train", "test")
    )
    # Only the row without an answer goes: none repeats another one or gives away a test row.
    assert [row["reward_model"]["ground_truth"] for row in train] == [
        "1020",
        "36",
        "-5",
        "140",
    ] and len(test) == 2
    assert [message["role"] for message in train[0]["prompt"]] == ["user"]
    assert train[0]["prompt"][0]["content"].endswith("\\boxed{Your answer}")
    assert run(tmp_path / "nowhere").returncode == 0


def test_the_recipe_for_verl_uses_its_command_with_valid_settings(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$VERL_USE_EXTERNAL_MODULES" "$@"\n')
    python.chmod(0o755)
    folder = ROOT / "recipes" / "verl_recipe"
    words = ["some/model", "a.parquet", "b.parquet", "trainer.total_epochs=1"]
    command = ["bash", str(folder / "run_prime_gsm8k.sh"), *words]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said[:3] == ["prime_ext.plugin", "-m", "verl.trainer.main_ppo"]
    overrides = [word for word in said[3:] if not word.startswith("--")]
    config = compose_config("prime_trainer", overrides)
    assert config.prime.variant == "distilled" and config.trainer.total_epochs == 1
    assert (folder / "REQUIRED_VERL.txt").read_text().strip() == f"verl=={SUPPORTED_VERL}"
