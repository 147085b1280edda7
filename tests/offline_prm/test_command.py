# SPDX-License-Identifier: Apache-2.0
"""The command: settings and data that cannot work are one line, before a model is loaded."""

import subprocess

import pytest
from tiny_prm import ROOT, environment, overrides, response_rows, write_jsonl

from prime_ext.offline_prm.__main__ import main


@pytest.fixture
def data(tmp_path):
    return write_jsonl(tmp_path / "d.jsonl", response_rows(6))


def check(monkeypatch, tmp_path, data, **more):
    # No such model exists: nothing may try to load it.
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    return main(["--check", *overrides("no/such-model", data, tmp_path / "out", **more)])


def test_good_data_are_described(tmp_path, monkeypatch, data, capsys):
    assert check(monkeypatch, tmp_path, data, **{"data.val_fraction": 0}) == 0
    assert "6 prompts with 24 responses to train on" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"prm.loss": "mse"}, "prm.loss='mse' is not one of ce, bon_acc"),
        ({"prm.beta": 0}, "prm.beta=0 must be a number > 0"),
        ({"data.val_fraction": 1}, "data.val_fraction=1 leaves nothing to train on"),
        ({"data.max_length": 1}, "data.max_length=1 must be a whole number >= 2"),
        ({"batching.max_token_len_per_gpu": 10}, "max_token_len_per_gpu=10 must be at least data.max_length=64"),
        ({"prm.loss": "kto", "data.prompts_per_step": 1}, "prm.kto.mismatched=true needs data.prompts_per_step"),
        ({"model.path": "/no/such/folder"}, "model.path=/no/such/folder does not exist"),
        ({"model.lora_rank": 8}, "model.lora_rank=8: offline training trains all weights"),
        ({"engine.model_dtype": "bf16"}, "engine.model_dtype=bf16: verl would round the weights"),
        ({"prm.margin": 3}, "Could not override 'prm.margin'"),
        ({"+prm.margin": 3}, "unknown key prm.margin"),
        ({"data.train_files": "none.parquet"}, "none.parquet does not exist"),
    ],
)
def test_settings_and_data_that_cannot_work(tmp_path, monkeypatch, data, capsys, more, message):
    assert check(monkeypatch, tmp_path, data, **more) == 2
    said = capsys.readouterr().err
    assert said.startswith("prime_ext: ") and message in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_dpo_without_a_prompt_that_has_both_outcomes(tmp_path, monkeypatch, capsys):
    rows = [{"prompt": str(k), "completions": ["a", "b"], "correctness": [k, k]} for k in (0, 1)]
    data = write_jsonl(tmp_path / "d.jsonl", rows)
    options = {"data.val_fraction": 0, "prm.loss": "dpo"}
    assert check(monkeypatch, tmp_path, data, **options) == 2
    assert "no prompt has both a correct and a wrong response, which prm.loss=dpo needs" in capsys.readouterr().err
    assert check(monkeypatch, tmp_path, data, **{**options, "prm.loss": "ce"}) == 0


def test_the_recipe_explains_itself_and_wants_a_model_and_data():
    recipe = ["bash", str(ROOT / "recipes" / "train_implicit_prm.sh")]
    help_text = subprocess.run([*recipe, "-h"], capture_output=True, text=True, env=environment())
    assert help_text.returncode == 0 and "prm.loss=step_ce" in help_text.stdout and "N_PROC" in help_text.stdout
    one_word = subprocess.run([*recipe, "model"], capture_output=True, text=True, env=environment())
    assert (
        one_word.returncode == 2
        and "give 2 arguments: bash recipes/train_implicit_prm.sh MODEL DATA" in one_word.stderr
    )
