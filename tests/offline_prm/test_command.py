# SPDX-License-Identifier: Apache-2.0
"""The command: settings and data that cannot work are one line, before a model is loaded."""

import pytest
from tiny_prm import overrides, response_rows, write_jsonl

from prime_ext.offline_prm.__main__ import main

# No prompt has a correct and a wrong response.
ONE_SIDED = [{"prompt": str(k), "completions": ["a", "b"], "correctness": [k, k]} for k in (0, 1)]


@pytest.fixture
def check(monkeypatch, tmp_path):
    # No such model exists: nothing may try to load it.
    monkeypatch.setenv("VERL_PLATFORM", "cpu")

    def run(rows, **more):
        data = write_jsonl(tmp_path / "d.jsonl", rows)
        return main(["--check", *overrides("no/such-model", data, tmp_path / "out", **more)])

    return run


def test_good_data_are_described(check, capsys):
    assert check(response_rows(6), **{"data.val_fraction": 0}) == 0
    assert "6 prompts with 24 responses to train on" in capsys.readouterr().out
    assert check(ONE_SIDED, **{"data.val_fraction": 0}) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"prm.loss": "mse"}, "prm.loss='mse'"),
        ({"prm.beta": 0}, "prm.beta=0"),
        ({"data.val_fraction": 1}, "data.val_fraction=1"),
        ({"data.max_length": 1}, "data.max_length=1"),
        ({"batching.max_token_len_per_gpu": 10}, "batching.max_token_len_per_gpu=10"),
        ({"model.path": "/no/such/folder"}, "model.path=/no/such/folder"),
        ({"model.lora_rank": 8}, "model.lora_rank=8"),
        ({"engine.model_dtype": "bf16"}, "engine.model_dtype=bf16"),
        ({"prm.margin": 3}, "'prm.margin'"),
        ({"+prm.margin": 3}, "unknown key prm.margin"),
        ({"data.train_files": "none.parquet"}, "none.parquet does not exist"),
        ({"data.val_fraction": 0, "prm.loss": "dpo"}, "prm.loss=dpo"),
    ],
)
def test_settings_and_data_that_cannot_work(check, tmp_path, capsys, more, message):
    assert check(ONE_SIDED, **more) == 2
    said = capsys.readouterr().err
    assert said.startswith("prime_ext: ") and message in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()
