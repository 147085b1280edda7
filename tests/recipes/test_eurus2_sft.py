# SPDX-License-Identifier: Apache-2.0
"""The recipe of Eurus-2-7B-SFT: what it starts, without starting it; test_prime_recipes.py has the paper's settings."""

import subprocess

import pytest
from recipe_calls import RECIPES, calls_of, overrides_of

from prime_ext.config.compose import SFT_CONFIG, compose_config

SCRIPT = RECIPES / "prime" / "run_eurus2-7b_sft_fsdp.sh"
# arXiv 2502.01456, section on imitation: conversations by source.
CONVERSATIONS = (12_715, 15_086, 55_845, 29_831, 27_663, 24_480, 28_980, 35_163)


def config_of(tmp_path, *words, **knobs):
    """The configuration that the script starts verl's trainer with, and the words before it."""
    (call,) = calls_of(tmp_path, f"prime/{SCRIPT.name}", *words, **knobs)
    overrides, _ = overrides_of(call, "prime_ext.sft")
    return compose_config(SFT_CONFIG, overrides), call[: call.index("prime_ext.sft")]


def test_it_starts_eight_processes_that_share_a_batch_evenly(tmp_path):
    config, launch = config_of(tmp_path, "sft.parquet")
    assert launch[:2] == ["-m", "torch.distributed.run"] and launch[-3:] == ["--nproc-per-node", "8", "-m"]
    # A whole conversation fits into a micro-batch, and the batch is shared out evenly.
    assert config.data.max_token_len_per_gpu >= config.data.max_length
    assert config.data.train_batch_size % config.trainer.n_gpus_per_node == 0


def test_the_number_of_updates_that_the_script_names_is_that_of_the_papers_data():
    rows = sum(CONVERSATIONS)
    assert rows == 229_763
    text = SCRIPT.read_text()
    assert f"{rows:,}" in text and f"{3 * (rows // 96):,} updates" in text


def test_knobs_and_overrides_reach_the_trainer(tmp_path):
    knobs = {"MODEL": "base", "N_GPUS": "16", "MAX_LENGTH": "4096", "EPOCHS": "1", "SEED": "7"}
    config, _ = config_of(tmp_path, "[a,b]", "optim.lr=2e-5", **knobs)
    assert (config.model.path, config.trainer.n_gpus_per_node, config.data.max_length) == ("base", 16, 4096)
    assert (config.trainer.total_epochs, config.trainer.seed, config.optim.lr) == (1, 7, 2e-5)
    assert list(config.data.train_files) == ["a", "b"]


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), ([], 2)])
def test_the_recipe_explains_itself(words, code):
    done = subprocess.run(["bash", str(SCRIPT), *words], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "recipes/prime/run_eurus2-7b_sft_fsdp.sh" in done.stdout and "NEVER RUN ON A GPU" in done.stdout
