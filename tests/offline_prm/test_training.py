# SPDX-License-Identifier: Apache-2.0
"""A whole run on a tiny model learns, resumes exactly, and leaves a usable model."""

import json
import shutil

import pytest
import torch
from tiny_prm import final_weights, overrides, response_rows, save_tiny_model, train, write_jsonl
from transformers import AutoModelForCausalLM, AutoTokenizer

from prime_ext.generate.prm_description import read_description
from prime_ext.run.metrics_file import read_metrics

pytestmark = pytest.mark.slow

LAST = 52


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run 52 steps of cross-entropy with checkpoints at 20, 40 and 52."""
    folder = tmp_path_factory.mktemp("run")
    save_tiny_model(folder / "model")
    data = write_jsonl(folder / "d.jsonl", response_rows(60))
    options = {
        "trainer.epochs": 4,
        "trainer.save_freq": 20,
        "trainer.val_freq": 25,
        "trainer.keep_checkpoints": 5,
    }
    arguments = overrides(folder / "model", data, folder / "out", **options)
    result = train(arguments)
    assert result.returncode == 0, result.stderr[-3000:]
    return folder, arguments, result


def without_seconds(output):
    steps = read_metrics(output / "metrics.jsonl")
    return {
        step: {k: v for k, v in data.items() if k != "train/seconds"}
        for step, data in steps.items()
    }


def test_it_learns_to_order_held_out_responses(run):
    folder, _, result = run
    metrics = read_metrics(folder / "out" / "metrics.jsonl")
    assert list(metrics) == list(range(LAST + 1))
    assert metrics[0]["val/cross_entropy"] == pytest.approx(0.6931, abs=1e-3)
    assert metrics[LAST]["val/pair_accuracy"] > 0.9 and metrics[LAST]["val/accuracy"] > 0.8
    assert metrics[LAST]["val/cross_entropy"] < 0.5
    # The schedule is a cosine to a tenth.
    assert metrics[LAST]["train/lr"] == pytest.approx(1e-3, rel=0.02)
    assert "8 with 32 held out" in result.stdout and f"{LAST}/{LAST}" in result.stderr


def test_the_final_folder_has_all_that_scoring_needs(run):
    folder, _, _ = run
    hf = folder / "out" / "hf"
    model = AutoModelForCausalLM.from_pretrained(hf)
    tokenizer = AutoTokenizer.from_pretrained(hf)
    assert next(model.parameters()).dtype == torch.float32 and tokenizer.chat_template
    card = (hf / "prime_ext_prm.json").read_text()
    description = json.loads(card)
    assert (description["loss"], description["beta"], description["steps"]) == ("ce", 0.5, LAST)
    assert read_description(str(hf))["reference"] == str(folder / "model")
    assert str(folder) not in card and "d.jsonl" in card
    readme = (hf / "README.md").read_text()
    shown = readme.replace("\\", "")
    accuracy = description["validation"]["val/pair_accuracy"]
    rows = ("| base model | ../../model |", "| optim.lr | 0.01 |", "| beta | 0.5 |")
    assert all(row in shown for row in rows) and str(folder) not in readme
    assert f"| val/pair_accuracy | {accuracy:.6g} |" in shown
    assert 'reference = AutoModelForCausalLM.from_pretrained("../../model")' in readme


def test_a_resumed_run_equals_the_uninterrupted_one(run, tmp_path):
    folder, arguments, _ = run
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    for left in ("checkpoints/global_step_40", f"checkpoints/global_step_{LAST}", "hf"):
        shutil.rmtree(out / left)
    # What a kill leaves.
    (out / "checkpoints" / "global_step_30").mkdir()
    with (out / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 53, "da')
    result = train([*arguments, f"trainer.output_dir={out}"])
    assert result.returncode == 0, result.stderr[-3000:]
    expected = final_weights(folder / "out")
    weights = final_weights(out)
    assert expected.keys() == weights.keys() and all(
        torch.equal(weights[name], expected[name]) for name in expected
    )
    assert without_seconds(out) == without_seconds(folder / "out")
    assert f"20/{LAST}" in result.stderr


def test_no_run_trains_or_continues_a_finished_one(run):
    folder, arguments, _ = run
    before = final_weights(folder / "out")
    again = train(arguments)
    assert again.returncode == 0 and all(
        torch.equal(before[k], v) for k, v in final_weights(folder / "out").items()
    )
    other = train([*arguments, "optim.lr=1e-3"])
    assert other.returncode == 2 and "holds a run with optim." in other.stderr
    assert "choose another trainer.output_dir" in other.stderr
