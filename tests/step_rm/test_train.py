# SPDX-License-Identifier: Apache-2.0
"""Training a step reward model: it learns, goes on after an interruption, and says what it made."""

import asyncio
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tiny_step_rm import chain_rows, save_bert, save_llama
from transformers import AutoModelForSequenceClassification

from prime_ext.step_rm.convert.__main__ import main as convert
from prime_ext.step_rm.description import FILE, read_description
from prime_ext.step_rm.labels import ID2LABEL, StepRMError
from prime_ext.step_rm.scorers.local import LocalScorer
from prime_ext.step_rm.scorers.protocol import Chain
from prime_ext.step_rm.train.__main__ import main
from prime_ext.step_rm.train.data import class_weights
from prime_ext.step_rm.train.metrics import (
    class_f1,
    confusion,
    expected_calibration_error,
    fit_temperature,
    headline,
    macro_f1,
    report,
)
from prime_ext.step_rm.train.run import MetricsFile, load_model
from prime_ext.step_rm.train.settings import ModelSettings

# ---- metrics -----------------------------------------------------------------------------------------------------


def test_f1_of_a_table_worked_out_by_hand():
    table_CC = torch.tensor([[2, 0, 2], [0, 0, 0], [1, 0, 5]])
    f1_C = class_f1(table_CC)
    # 2 * 2 / (4 + 3), the second class is nowhere, 2 * 5 / (6 + 7).
    assert f1_C[0] == pytest.approx(4 / 7) and f1_C[1].isnan() and f1_C[2] == pytest.approx(10 / 13)
    assert macro_f1(table_CC) == pytest.approx((4 / 7 + 10 / 13) / 2)
    assert confusion(torch.tensor([2, 0, 0]), torch.tensor([0, 0, 2])).tolist() == [[1, 0, 1], [0, 0, 0], [1, 0, 0]]


def test_calibration_error_worked_out_by_hand():
    probability_NC = torch.tensor([[0.9, 0.1, 0.0], [0.9, 0.1, 0.0], [0.2, 0.6, 0.2], [0.0, 0.0, 1.0]])
    # Confidence 0.9 and half right, 0.6 and wrong, 1 and right.
    assert expected_calibration_error(probability_NC, torch.tensor([0, 1, 0, 2])) == pytest.approx(
        (2 * 0.4 + 0.6 + 0.0) / 4, abs=1e-6
    )


@given(st.sampled_from([0.3, 1.0, 4.0]), st.integers(0, 3))
def test_the_temperature_that_was_put_in_is_found(temperature, seed):
    generator = torch.Generator().manual_seed(seed)
    logits_NC = 2 * torch.randn(20_000, 3, generator=generator)
    class_N = torch.multinomial(logits_NC.softmax(-1), 1, generator=generator)[:, 0]
    found = fit_temperature(logits_NC * temperature, class_N)
    assert found == pytest.approx(temperature, rel=0.06)
    before, after = headline(logits_NC * temperature, class_N), headline(logits_NC * temperature, class_N, found)
    assert after["nll"] <= before["nll"] + 1e-9 and after["ece"] < 0.02 and after["accuracy"] == before["accuracy"]


def test_the_report_counts_every_step_by_index_and_source():
    logits_NC = torch.eye(3)[torch.tensor([0, 1, 2, 2, 2])]
    found = report(logits_NC, torch.tensor([0, 1, 2, 2, 0]), [0, 0, 1, 20, 30], ["a", "a", "b", "b", "b"], 1.0)
    assert {name: (part["steps"], part["accuracy"]) for name, part in found["by_step_index"].items()} == {
        "0": (2, 1.0),
        "1": (1, 1.0),
        "9+": (2, 0.5),
    }
    assert found["by_source"]["b"]["majority"] == pytest.approx(2 / 3)
    assert found["classes"]["-1"] == {"steps": 2, "precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3)}
    json.dumps(found, allow_nan=False)


def test_class_weights_have_the_mean_one_over_the_rows():
    classes = [0] * 10 + [2] * 30
    for choice in ("balanced", [3.0, 1.0, 0.5]):
        weight_C = class_weights(choice, classes)
        assert float(weight_C[torch.tensor(classes)].mean()) == pytest.approx(1)
    assert class_weights("balanced", classes).tolist() == pytest.approx([2, 0, 2 / 3])
    assert class_weights("none", classes) is None
    with pytest.raises(StepRMError, match="weight 0"):
        class_weights([0.0, 1.0, 0.0], classes)


# ---- heads -------------------------------------------------------------------------------------------------------


def settings_of(path, new_head=False):
    return ModelSettings(str(path), new_head, False)


def test_a_model_without_a_head_gets_one_with_our_label_map(tmp_path):
    for name, save in (("bert", save_bert), ("llama", save_llama)):
        model = load_model(settings_of(save(tmp_path / name, head=False)))
        assert model.config.id2label == ID2LABEL and model.config.num_labels == 3


def test_a_model_with_our_classes_keeps_its_head(tmp_path):
    path = save_bert(tmp_path / "m")
    weights = load_file(path / "model.safetensors")
    assert torch.equal(load_model(settings_of(path)).state_dict()["classifier.weight"], weights["classifier.weight"])


@pytest.mark.parametrize("names", [("entailment", "neutral", "contradiction"), ("1", "0", "-1"), ("no", "yes")])
def test_a_head_that_means_something_else_is_refused_or_replaced(tmp_path, names):
    path = save_bert(tmp_path / "m", labels=dict(enumerate(names)))
    with pytest.raises(StepRMError, match="model.new_head=true"):
        load_model(settings_of(path))
    model = load_model(settings_of(path, new_head=True))
    weights = load_file(path / "model.safetensors")
    body = "bert.encoder.layer.0.attention.self.query.weight"
    assert torch.equal(model.state_dict()[body], weights[body])
    assert model.config.id2label == ID2LABEL and model.classifier.weight.shape[0] == 3
    assert not torch.equal(model.classifier.weight[:2], weights["classifier.weight"][:2])


# ---- runs --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("step_rm")
    save_bert(path / "bert", head=False, scale=0.1)
    save_llama(path / "llama", head=False)
    (path / "chains.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chain_rows(300)))
    words = ["--chains", str(path / "chains.jsonl"), "--validation", "0.2", "--test", "0.2"]
    assert convert([*words, "--output", str(path / "steps.parquet")]) == 0
    return path


def overrides(folder, output, **more):
    values = {
        "model.path": folder / "bert",
        "data.files": folder / "steps.parquet",
        "data.max_length": 64,
        "optim.lr": 3e-3,
        "optim.epochs": 4,
        "trainer.device": "cpu",
        "trainer.output_dir": output,
        **more,
    }
    return [f"{key}={value}" for key, value in values.items()]


def results(output):
    return json.loads((output / "results.json").read_text())


def logged(output):
    return [json.loads(line)["data"] for line in (output / "metrics.jsonl").read_text().splitlines()]


def weights(output):
    return load_file(output / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def trained(folder):
    output = folder / "trained"
    assert main(overrides(folder, output)) == 0
    return output


def test_it_learns_what_the_steps_say(trained):
    found = results(trained)
    assert found["test"]["accuracy"] > 0.85 > found["test"]["majority"] + 0.2
    assert found["data"]["train"]["steps"] == sum(found["data"]["train"][f"label {label}"] for label in (-1, 0, 1))
    assert set(found["test"]["by_step_index"]) == {"0", "1", "2", "3"}
    assert found["validation"]["nll"] <= found["validation"]["uncalibrated"]["nll"]


def test_what_is_written_is_complete_and_nothing_else(trained):
    found = sorted(path.name for path in trained.iterdir())
    assert found == ["checkpoints", "metrics.jsonl", "model", "results.json", "run.json"]
    card = (trained / "model" / "README.md").read_text()
    assert "## Results" in card and "cannot check a step against it" in card and "macro-F1" in card
    assert sum("eval_macro_f1" in line for line in logged(trained)) == 4
    description = read_description(trained / "model")
    assert description.temperature == results(trained)["temperature"] and description.pair_format.max_length == 64
    # A server can read that its classes are a distribution.
    config = json.loads((trained / "model" / "config.json").read_text())
    assert config["problem_type"] == "single_label_classification"
    assert config["id2label"] == {"0": "-1", "1": "0", "2": "1"} and config["pad_token_id"] is not None


def test_the_scorer_reads_it_without_further_words(trained):
    scorer = LocalScorer(trained / "model", device="cpu")
    chains = [Chain((f"Step 1: we add {digit} {word}.",)) for word in ("good", "bad") for digit in range(10)]
    scores = [outcome.scores[0] for outcome in asyncio.run(scorer.score(chains))]
    assert min(scores[:10]) > 0.5 > max(scores[10:])


def test_an_interrupted_run_goes_on_to_the_same_weights_and_metrics(folder, trained, monkeypatch):
    output = folder / "interrupted"
    on_log = MetricsFile.on_log

    def stop(self, args, state, control, **kwargs):
        on_log(self, args, state, control, **kwargs)
        if state.global_step > 0.6 * state.max_steps:
            raise KeyboardInterrupt

    monkeypatch.setattr(MetricsFile, "on_log", stop)
    assert main(overrides(folder, output)) == 130
    assert not (output / "model").exists()
    monkeypatch.undo()
    assert main(overrides(folder, output)) == 0
    for name, value in weights(trained).items():
        assert torch.equal(value, weights(output)[name]), name
    assert results(output) == results(trained)
    # Once more: nothing is left to train, and the result is the same.
    assert main(overrides(folder, output)) == 0
    assert results(output)["test"] == results(trained)["test"]


def test_a_folder_with_another_run_is_refused(folder, trained, capsys):
    assert main(overrides(folder, trained, **{"optim.lr": 1e-4})) == 2
    assert "holds a run with other settings (optim" in capsys.readouterr().err


def test_the_cut_of_a_step_into_passes_changes_nothing(folder):
    options = {"optim.epochs": 1, "optim.class_weights": "balanced", "trainer.patience": 0}
    one, other = folder / "whole", folder / "cut"
    assert main(overrides(folder, one, **options, **{"optim.batch_size": 32})) == 0
    assert main(overrides(folder, other, **options, **{"optim.batch_size": 8, "optim.accumulation": 4})) == 0
    first, second = ([line for line in logged(output) if "grad_norm" in line] for output in (one, other))
    for line, cut in zip(first[:3], second[:3], strict=True):
        assert cut["loss"] == pytest.approx(line["loss"], rel=1e-3)
        assert cut["grad_norm"] == pytest.approx(line["grad_norm"], rel=1e-2)
    assert results(other)["validation"]["nll"] == pytest.approx(results(one)["validation"]["nll"], rel=2e-2)


def test_training_stops_without_improvement(folder):
    output = folder / "patient"
    options = {"optim.lr": 1e-12, "optim.epochs": 30, "trainer.patience": 2}
    assert main(overrides(folder, output, **options)) == 0
    assert sum("eval_macro_f1" in line for line in logged(output)) == 3


def test_a_decoder_trains_with_the_question_all_steps_and_no_calibration(folder):
    output = folder / "decoder"
    options = {
        "model.path": folder / "llama",
        "data.question": True,
        "data.previous": 0,
        "data.strip_markers": True,
        "data.max_length": 48,
        "optim.epochs": 1,
        "trainer.calibrate": False,
        "trainer.metric": "nll",
        "trainer.evals_per_epoch": 3,
    }
    assert main(overrides(folder, output, **options)) == 0
    found = results(output)
    assert found["temperature"] == 1 and found["data"]["train"]["previous steps cut"] > 0
    assert math.isfinite(found["test"]["nll"])
    model = AutoModelForSequenceClassification.from_pretrained(output / "model")
    assert model.config.id2label == ID2LABEL and (output / "model" / FILE).is_file()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model.path": "/nowhere"}, "model.path=/nowhere does not exist"),
        ({"model.path": "no-such/model"}, "model.path=no-such/model cannot be loaded"),
        ({"data.files": "nowhere.parquet"}, "nowhere.parquet does not exist"),
        ({"data.max_length": 4000}, "takes 128 tokens, max_length=4000 is more"),
        ({"data.layout": "x"}, "data.layout='x' is not one of pair, text"),
        ({"optim.lr": 0}, "optim.lr=0 must be a number > 0"),
        ({"optim.class_weights": "[1,2]"}, "must be none, balanced, or three numbers"),
        ({"optim.class_weights": "x"}, "optim.class_weights='x'"),
        ({"trainer.metric": "f2"}, "trainer.metric='f2'"),
        ({"trainer.typo": 1}, "typo"),
        ({"model.path": "???"}, "model.path"),
    ],
)
def test_what_cannot_work_is_one_line(folder, tmp_path, capsys, change, message):
    assert main(overrides(folder, tmp_path / "out", **change)) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("prime_ext: ")]
    assert len(lines) == 1 and message in lines[0]
    assert not (tmp_path / "out" / "model").exists()


def test_data_without_a_validation_split_or_with_one_label_are_refused(folder, tmp_path, capsys):
    target = tmp_path / "steps.parquet"
    convert(["--chains", str(folder / "chains.jsonl"), "--validation", "0", "--test", "0", "--output", str(target)])
    assert main(overrides(folder, tmp_path / "out", **{"data.files": target})) == 2
    assert "no step is in the split validation" in capsys.readouterr().err
    rows = [{"question": f"What is {k}?", "steps": ["a"], "labels": [1]} for k in range(50)]
    (tmp_path / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    convert(["--chains", str(tmp_path / "one.jsonl"), "--validation", "0.3", "--output", str(target)])
    assert main(overrides(folder, tmp_path / "out", **{"data.files": target})) == 2
    assert "all steps to train on have the label 1" in capsys.readouterr().err


def test_files_with_different_splits_of_the_same_questions_are_refused(folder, tmp_path, capsys):
    other = tmp_path / "other.parquet"
    words = ["--chains", str(folder / "chains.jsonl"), "--validation", "0.2", "--test", "0.2", "--seed", "7"]
    convert([*words, "--output", str(other)])
    files = f"[{folder / 'steps.parquet'},{other}]"
    assert main(overrides(folder, tmp_path / "out", **{"data.files": files})) == 2
    assert "convert all files in one go" in capsys.readouterr().err
