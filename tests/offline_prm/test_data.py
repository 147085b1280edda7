# SPDX-License-Identifier: Apache-2.0
"""Labeled responses: formats, groups, and one line about rows and settings that cannot work."""

from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from tiny_prm import overrides, response_rows, save_tiny_model, write_jsonl

import prime_ext.config
from prime_ext.config.checks import read
from prime_ext.utils.rows import SourceError
from prime_ext.utils.run_store import RunLock
from prime_ext.verl_adapter.offline_prm.labeled_responses import read_data
from prime_ext.verl_adapter.offline_prm.offline_settings import LossSettings
from prime_ext.verl_adapter.offline_prm.program import compose, main

DEFAULTS = OmegaConf.to_container(
    OmegaConf.load(Path(prime_ext.config.__file__).parent / "offline_prm_settings.yaml").prm
)
PRM = read(LossSettings, {**DEFAULTS, "reference_path": "r"}, "prm")


QUESTION = {"role": "user", "content": "a"}


def test_rows_of_one_prompt_are_one_group(
    tmp_path,
):
    rows = [
        {"prompt": "a", "completions": ["1"], "correctness": [1]},
        {"prompt": "b", "completions": ["2"], "correctness": [0]},
        {"prompt": [QUESTION], "completions": ["3", "4"], "correctness": [0, 0.5]},
        # One conversation, as in PRIME-RL/EurusPRM-Stage1-Data.
        {
            "response": [QUESTION, {"role": "assistant", "content": "5"}],
            "label": 1,
            "dataset": "MATH",
        },
    ]
    data = read_data([write_jsonl(tmp_path / "d.jsonl", rows)], PRM)
    assert [group.prompt for group in data] == ["a", "b"]
    expected = [[("1", 1.0), ("3", 0.0), ("4", 0.5), ("5", 1.0)], [("2", 0.0)]]
    assert [[(e.text, e.label) for e in group.examples] for group in data] == expected


def test_steps_become_one_response_in_which_an_error_stays(tmp_path):
    rows = [
        {"prompt": "p", "completions": ["x", "y", "z", "u"], "labels": [True, None, False, 0.5]}
    ]
    data = read_data([write_jsonl(tmp_path / "s.jsonl", rows)], replace(PRM, loss="step_ce"))
    example = data[0].examples[0]
    assert example.text == "Step 1: x\n\nStep 2: y\n\nStep 3: z\n\nStep 4: u"
    assert example.step_labels == (1.0, None, 0.0, 0.0) and example.label is None


GOOD = {"prompt": "p", "completions": ["a", "b"], "correctness": [1, 0]}
STEPS = {"prompt": "p", "completions": ["a", "b"], "labels": [0, 1]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (GOOD | {"prompt": None}, "prompt must be a text or a list of messages"),
        ({"completions": ["a"], "correctness": [1]}, "no field 'prompt'; it has"),
        (GOOD | {"prompt": [{"role": 1, "content": "a"}]}, "prompt must be"),
        (GOOD | {"completions": "ab"}, "completions must be a list that is not empty, got 'ab'"),
        (GOOD | {"correctness": ["1", 0]}, "correctness 1 must be in [0, 1], got '1'"),
        (GOOD | {"prompt": [{"role": "user"}]}, "prompt must be"),
        (GOOD | {"completions": []}, "completions must be"),
        (GOOD | {"completions": ["a", 3]}, "completions 2 must be a text, got 3"),
        (GOOD | {"completions": ["a"]}, "correctness must have 1 values, got 2"),
        (GOOD | {"correctness": [float("nan"), 0]}, "correctness 1 must be in [0, 1], got nan"),
        (GOOD | {"correctness": [None, 0]}, "correctness 1 must be in [0, 1], got None"),
        (GOOD | {"correctness": [0.5, 0]},
         "correctness 1 must be 0 or 1 for the loss dpo, got 0.5"),
        ({"response": [QUESTION, QUESTION], "label": 1}, "response must be"),
        (STEPS | {"labels": [1]}, "labels must have 2 values, got 1"),
        (STEPS | {"labels": [1, 2]}, "label of step 2 must be in [0, 1], got 2"),
        (STEPS | {"completions": ["a", ""]}, "completions 2 is empty"),
        (STEPS | {"labels": [None, None]}, "no step has a label"),
    ],
)  # fmt: skip
def test_a_bad_row_is_one_line_with_its_number(tmp_path, row, message):
    by_step = "labels" in row
    path = write_jsonl(tmp_path / "d.jsonl", [STEPS if by_step else GOOD, row])
    with pytest.raises(SourceError) as error:
        read_data([path], replace(PRM, loss="step_ce" if by_step else "dpo"))
    assert (
        message in str(error.value)
        and f"{path} row 2" in str(error.value)
        and "\n" not in str(error.value)
    )


def test_equal_files_and_shared_prompts_are_not_held_out(check, tmp_path, capsys):
    rows = response_rows(6)
    data = tmp_path / "d.jsonl"
    held_out = write_jsonl(tmp_path / "v.jsonl", response_rows(9)[6:])
    own = {"data.val_fraction": 0, "data.val_files": held_out}
    assert check(rows, **own) == 0
    assert "3 with 12 held out" in capsys.readouterr().out
    # Other layout of the same prompt, as a message.
    shared = {**rows[4], "prompt": [{"role": "user", "content": f"  {rows[4]['prompt']}\n"}]}
    write_jsonl(held_out, [*response_rows(9)[6:], shared])
    for more, message in (
        (own, "1 of 4 prompts of data.val_files are also in data.train_files"),
        (own | {"data.val_files": data}, "6 of 6 prompts of data.val_files are also in"),
        (own | {"data.train_files": f"[{data},{data}]"}, f"data.train_files must name {data} once"),
    ):
        assert check(rows, **more) == 2
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1
    assert check(rows, **own) == 2
    assert f"({held_out} row 4, {data} row 5)" in capsys.readouterr().err


def test_responses_that_would_be_cut_are_left_out_with_a_count(check, tmp_path, capsys):
    save_tiny_model(tmp_path / "model")
    row = {"prompt": "p", "completions": ["2 2 2 2 " * 9 + end for end in "13"]}
    rows = [row | {"correctness": [1, 0]}, *response_rows(3)]
    settings = {"model.path": tmp_path / "model", "data.val_fraction": 0}
    assert check(rows, **settings) == 0
    said = capsys.readouterr().out
    assert (
        "train: 2 of 14 responses are left out, as data.max_length would cut them, and 1 of 4"
        in said
    )
    assert "3 prompts with 12 responses to train on" in said and "nothing is wrong" in said
    assert check(rows[:1], **settings) == 2
    assert "no response fits within data.max_length=64; raise it" in capsys.readouterr().err


def test_separators_of_a_shell_are_line_breaks(check, tmp_path):
    data = write_jsonl(tmp_path / "s.jsonl", [STEPS])
    words = overrides("no/such-model", data, tmp_path / "out", **{"prm.loss": "step_ce"})
    words += [r'prm.steps.separator="\n\n"', r'prm.steps.prefix="\t\\n "']
    _, settings = compose(words)
    assert (settings.prm.steps.separator, settings.prm.steps.prefix) == ("\n\n", "\t\\n ")
    [group] = read_data([data], settings.prm)
    assert group.examples[0].text.count("\n\n") == 1


def test_a_folder_in_use_is_refused(check, tmp_path, capsys):
    with RunLock(tmp_path / "out"):
        assert check(response_rows(6)) == 2
    said = capsys.readouterr().err
    assert f"trainer.output_dir={tmp_path / 'out'} is in use by process" in said
    assert check(response_rows(6)) == 0


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
    assert check([]) == 2 and "d.jsonl has no rows" in capsys.readouterr().err


def test_a_gpu_without_flash_attention_is_a_line(check, capsys, monkeypatch):
    monkeypatch.delenv("VERL_PLATFORM")
    monkeypatch.setattr("prime_ext.preflight.file_checks.has_flash_attention", lambda: False)
    more = {"data.val_fraction": 0, "trainer.device": "cuda"}
    assert check(response_rows(6), **more) == 2
    (line,) = capsys.readouterr().err.splitlines()
    sdpa = "+model.override_config.attn_implementation"
    assert "model: flash-attn is not installed" in line and f"set {sdpa}=sdpa" in line
    assert check(response_rows(6), **more, **{sdpa: "sdpa"}) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"prm.loss": "mse"}, "or 'step_ce', got 'mse'"),
        ({"data.val_fraction": 1}, "data.val_fraction=1"),
        ({"batching.max_token_len_per_gpu": 10}, "batching.max_token_len_per_gpu=10"),
        ({"model.path": "/no/such/folder"}, "model.path=/no/such/folder"),
        ({"model.lora_rank": 8}, "model.lora_rank=8"),
        ({"engine.model_dtype": "bf16"}, "engine.model_dtype=bf16"),
        ({"+prm.margin": 3}, "nothing reads prm.margin=3"),
        ({"data.train_files": "none.parquet"}, "none.parquet does not exist"),
        ({"data.val_fraction": 0, "prm.loss": "dpo"}, "prm.loss=dpo"),
        ({"checkpoint.save_contents": "[hf_model]"},
         "checkpoint.save_contents=[hf_model] lacks mod"),
        ({"checkpoint.save_contents": "[]"}, "checkpoint.save_contents=[] lacks model"),
        ({"checkpoint.save_contents": "[model,extra]"},
         "lacks optimizer, which a resumed run needs"),
        ({"checkpoint.load_contents": "[model]"},
         "checkpoint.load_contents=[model] lacks optimizer"),
        ({"checkpoint.save_contents": "[modle,optimizer,extra]"},
         "checkpoint.save_contents.0 must be 'model', 'optimizer', 'extra' or 'hf_model'"),
        ({"optim.lr": 0}, "optim.lr must be greater than 0, got 0"),
        ({"optim.lr": -1e-3}, "optim.lr must be greater than 0, got -0.001"),
        ({"optim.lr": "nan"}, "optim.lr must be a finite number"),
        ({"optim.clip_grad": 0}, "optim.clip_grad must be greater than 0"),
        ({"optim.betas": "[1.0,0.95]"}, "optim.betas"),
        ({"optim.weight_decay": -0.1}, "optim.weight_decay must be"),
        ({"optim.lr_warmup_steps_ratio": 1.0}, "optim.lr_warmup_steps_ratio must be less than 1"),
        ({"optim.lr_warmup_steps": 9}, "optim.lr_warmup_steps=9 must be below the 1 steps"),
        ({"optim.lr_scheduler_type": "linear"}, "optim.lr_scheduler_type must be 'constant' or"),
        ({"optim.min_lr_ratio": 2}, "optim.min_lr_ratio must be"),
    ],
)  # fmt: skip
def test_settings_and_data_that_cannot_work(check, tmp_path, capsys, more, message):
    assert check(ONE_SIDED, **more) == 2
    said = capsys.readouterr().err
    assert said.startswith("prime_ext: ") and message in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()
