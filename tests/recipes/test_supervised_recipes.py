# SPDX-License-Identifier: Apache-2.0
"""DRY_RUN=1 of the supervised recipes: what they would need, without a GPU, data or models."""

import pytest
from recipe_calls import calls_of

from prime_ext import doctor

SCRIPTS = {
    "pspo_wrs/run_bert-large_step-rm_ddp.sh": (["google-bert/bert-large-uncased", "labels.jsonl"], "335,144,963"),
    "pspo_wrs/run_abel-7b_sft_fsdp.sh": (["GAIR/Abel-7B-002", "sft.parquet"], "6,738,423,808"),
    "prime/run_eurus2-7b_sft_fsdp.sh": (["sft.parquet"], "7,615,616,512"),
}


def planned(folder, script, *words, **knobs):
    """The words that a dry run calls the plan with."""
    (call,) = calls_of(folder, script, *words, DRY_RUN="1", **knobs)
    assert call[:3] == ["-m", "prime_ext.doctor", "--plan"]
    return call[2:]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_dry_run_plans_without_data_or_models(tmp_path, capsys, script):
    words, parameters = SCRIPTS[script]
    call = planned(tmp_path, script, *words, ROWS="229763", MEAN_TOKENS="1391")
    assert not (tmp_path / "out").exists()
    assert doctor.main(call) == 0
    out = capsys.readouterr().out
    assert f"parameters: {parameters}" in out and "H200" in out and "device hours" in out and "checkpoint:" in out
    assert "fits:" in out and "not here: data:" in out and "not here: model.path:" in out


def test_the_papers_data_give_the_number_of_updates_that_the_script_names(tmp_path, capsys):
    call = planned(tmp_path, "prime/run_eurus2-7b_sft_fsdp.sh", "sft.parquet", ROWS="229763", MEAN_TOKENS="1391")
    assert doctor.main(call) == 0
    out = capsys.readouterr().out
    assert "h for 7,179 steps" in out and "133,536 tokens" in out


def test_a_dry_run_says_what_would_not_start(tmp_path, capsys):
    assert doctor.main(planned(tmp_path, "prime/run_eurus2-7b_sft_fsdp.sh", "sft.parquet", BATCH="100")) == 1
    assert "data.train_batch_size=100 is no multiple of the 8" in capsys.readouterr().err
    assert doctor.main(planned(tmp_path, "pspo_wrs/run_abel-7b_sft_fsdp.sh", "m", "d", "+data.colour=red")) == 1
    assert "unknown key data.colour" in capsys.readouterr().err
