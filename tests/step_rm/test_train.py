# SPDX-License-Identifier: Apache-2.0
"""Training a step reward model: it learns, resumes after an interruption, and describes itself."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tiny_step_rm import chain_rows, save_bert, save_llama

from prime_ext.step_rm.convert import main as convert
from prime_ext.step_rm.description import read_description
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.local import LocalScorer, StepClassifier
from prime_ext.step_rm.scorers.protocol import Chain
from prime_ext.step_rm.train import compose, main
from prime_ext.step_rm.train_settings import ModelSettings
from prime_ext.step_rm.training import RunFiles, fit_temperature, load_model, report
from prime_ext.utils.files import read_json
from prime_ext.utils.run_store import RunLock


def test_the_report_worked_out_by_hand():
    # Class 0 is right once and missed once, class 1 does not occur.
    logits_NC = torch.eye(3)[torch.tensor([0, 2, 2, 2])]
    metrics = report(logits_NC, torch.tensor([0, 0, 2, 2]), 1.0)
    assert metrics["confusion"] == [[1, 0, 1], [0, 0, 0], [0, 0, 2]]
    assert (metrics["accuracy"], metrics["macro_f1"]) == (0.75, pytest.approx((2 / 3 + 4 / 5) / 2))
    assert (metrics["steps"], metrics["majority"]) == (4, 0.5)


@pytest.mark.parametrize("temperature", [0.3, 4.0])
def test_the_temperature_that_was_put_in_is_found(temperature):
    generator = torch.Generator().manual_seed(0)
    logits_NC = 2 * torch.randn(20_000, 3, generator=generator)
    class_N = torch.multinomial(logits_NC.softmax(-1), 1, generator=generator)[:, 0]
    fitted = fit_temperature(logits_NC * temperature, class_N)
    assert fitted == pytest.approx(temperature, rel=0.06)
    before = report(logits_NC * temperature, class_N)
    after = report(logits_NC * temperature, class_N, fitted)
    assert after["nll"] < before["nll"] and after["accuracy"] == before["accuracy"]


def test_a_head_with_our_classes_is_kept_and_another_refused(tmp_path):
    path = save_bert(tmp_path / "m")
    kept = load_model(ModelSettings(str(path), False)).state_dict()["classifier.weight"]
    assert torch.equal(kept, load_file(path / "model.safetensors")["classifier.weight"])
    for names in (("entailment", "neutral", "contradiction"), ("1", "0", "-1"), ("no", "yes")):
        path = save_bert(tmp_path / names[0], labels=dict(enumerate(names)))
        with pytest.raises(
            StepRMError, match="which are not -1, 0 and 1|in the order|has 2 labels"
        ):
            load_model(ModelSettings(str(path), False))


def converted(folder, rows, name, *words):
    source = folder / f"{name}.jsonl"
    target = folder / f"{name}.parquet"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert convert(["--chains", str(source), "--output", str(target), *words]) == 0
    return target


SHARES = ("--validation", "0.2", "--test", "0.2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("step_rm")
    save_bert(path / "bert", head=False, scale=0.1)
    save_llama(path / "llama", head=False)
    converted(path, chain_rows(300), "steps", *SHARES)
    return path


def run(folder, output, *words, **more):
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
    return main([*words, *(f"{key}={value}" for key, value in values.items())])


def logged(output, key):
    lines = [
        json.loads(line)["data"] for line in (output / "metrics.jsonl").read_text().splitlines()
    ]
    return [line for line in lines if key in line]


@pytest.fixture(scope="module")
def trained(folder):
    assert run(folder, folder / "trained") == 0
    return folder / "trained"


def test_it_learns_and_everything_is_written(trained):
    results = read_json(trained / "results.json")
    assert results["test"]["accuracy"] > 0.85 > results["test"]["majority"] + 0.2
    assert results["data"]["train"]["steps"] == sum(
        results["data"]["train"][f"label {label}"] for label in (-1, 0, 1)
    )
    assert len(logged(trained, "eval_macro_f1")) == 4
    description = read_description(trained / "model")
    assert (
        description.temperature == results["temperature"]
        and description.pair_format.max_length == 64
    )
    card = (trained / "model" / "README.md").read_text()
    assert card.startswith(
        "---\nlibrary_name: transformers\ntags: [prime-ext, process-reward-model"
    )
    shown = card.replace("\\", "")
    for row in (
        "| base model | ../../bert |",
        f"| test.accuracy | {results['test']['accuracy']:.6g} |",
        "| optim.lr | 0.003 |",
        '| data.files | ["steps.parquet"] |',
    ):
        assert row in shown
    assert "AutoModelForSequenceClassification.from_pretrained" in card
    assert str(trained.parent) not in card
    # A server can read that its classes are a distribution.
    config = read_json(trained / "model" / "config.json")
    assert (
        config["problem_type"] == "single_label_classification"
        and config["pad_token_id"] is not None
    )
    assert config["id2label"] == {"0": "-1", "1": "0", "2": "1"}
    chains = [
        Chain((f"Step 1: we add {digit} {word}.",))
        for word in ("good", "bad")
        for digit in range(10)
    ]
    scorer = LocalScorer(StepClassifier(trained / "model", device="cpu"))
    scores = [outcome.scores[0] for outcome in scorer.score_now(chains)]
    assert min(scores[:10]) > 0.5 > max(scores[10:])


def test_interrupted_runs_resume_to_the_same_weights_and_metrics(
    folder, trained, monkeypatch, capsys
):
    output = folder / "interrupted"
    on_save = RunFiles.on_save

    def stop(self, args, state, control, **kwargs):
        # What a kill in the middle of the third checkpoint leaves.
        if state.global_step > 0.6 * state.max_steps:
            (
                output / "checkpoints" / f"checkpoint-{state.global_step}" / "trainer_state.json"
            ).unlink()
            raise KeyboardInterrupt
        on_save(self, args, state, control, **kwargs)

    monkeypatch.setattr(RunFiles, "on_save", stop)
    assert run(folder, output) == 130
    assert not (output / "model").exists()
    monkeypatch.undo()
    # Another run does not go on from its checkpoints.
    assert run(folder, output, **{"optim.lr": 1e-4}) == 2
    assert "holds a run with settings.optim" in capsys.readouterr().err
    # The second time nothing is left to train.
    for _ in range(2):
        assert run(folder, output) == 0
        assert read_json(output / "results.json") == read_json(trained / "results.json")
        expected, resumed = (
            load_file(each / "model" / "model.safetensors") for each in (trained, output)
        )
        assert all(torch.equal(expected[name], resumed[name]) for name in expected)


def test_the_cut_of_a_step_into_passes_changes_nothing(folder):
    options = {"optim.epochs": 1, "trainer.patience": 0}
    one = folder / "whole"
    other = folder / "cut"
    assert run(folder, one, **options, **{"optim.batch_size": 32}) == 0
    assert run(folder, other, **options, **{"optim.batch_size": 8, "optim.accumulation": 4}) == 0
    first, second = (logged(output, "grad_norm")[:3] for output in (one, other))
    for line, cut in zip(first, second, strict=True):
        assert cut["loss"] == pytest.approx(line["loss"], rel=1e-3)
        assert cut["grad_norm"] == pytest.approx(line["grad_norm"], rel=1e-2)


def test_a_decoder_with_full_context_stops_without_improvement(folder):
    output = folder / "decoder"
    options = {
        "model.path": folder / "llama",
        "data.max_length": 48,
        "data.question": True,
        "data.previous": 0,
    }
    options |= {
        "data.strip_markers": True,
        "optim.lr": 1e-12,
        "optim.epochs": 30,
        "trainer.patience": 2,
    }
    options |= {"trainer.metric": "nll", "trainer.evals_per_epoch": 3}
    assert run(folder, output, **options) == 0
    assert len(logged(output, "eval_nll")) == 3
    assert read_json(output / "results.json")["data"]["train"]["previous steps cut"] > 0
    assert StepClassifier(output / "model").description.pair_format.question


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model.path": "/nowhere"}, "model.path=/nowhere"),
        ({"model.path": "???"}, "model.path"),
        ({"data.max_length": 4000}, "max_length=4000"),
        ({"trainer.typo": 1}, "typo"),
        ({"data.files": "ALL_TRAIN"}, "no step is in the split validation"),
        ({"data.files": "[STEPS,OTHER_SEED]"}, "convert all files in one go"),
        ({"data.files": "[STEPS,STEPS]"}, "must name"),
        ({"optim.lr": 0}, "optim.lr must be greater than 0, got 0"),
        ({"optim.warmup_ratio": 1.0}, "optim.warmup_ratio must be less than 1, got 1.0"),
        ({"optim.weight_decay": "nan"}, "optim.weight_decay must be a finite number"),
        ({"model.path": "MISSING"}, "model.path=MISSING cannot be loaded"),
    ],
)
@pytest.mark.parametrize("check", [False, True])
def test_what_cannot_work_is_one_line(folder, tmp_path, capsys, check, change, message):
    files = str(change.get("data.files", folder / "steps.parquet")).replace(
        "STEPS", str(folder / "steps.parquet")
    )
    others = {
        "ALL_TRAIN": ("--validation", "0", "--test", "0"),
        "OTHER_SEED": (*SHARES, "--seed", "7"),
    }
    for name, words in others.items():
        if name in files:
            files = files.replace(name, str(converted(tmp_path, chain_rows(300), name, *words)))
    capsys.readouterr()
    values = {**change, "data.files": files}
    assert run(folder, tmp_path / "out", *["--check"] * check, **values) == 2
    lines = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("prime_ext: ")
    ]
    assert len(lines) == 1 and message in lines[0]
    assert not (tmp_path / "out" / "model").exists()


def test_a_check_starts_nothing(folder, tmp_path, capsys):
    output = tmp_path / "out"
    assert run(folder, output, "--check") == 0
    said = capsys.readouterr().out
    assert "train: steps " in said and said.endswith("prime_ext: nothing is wrong\n")
    assert not output.exists()


def test_two_runs_do_not_share_a_folder(folder, tmp_path, capsys):
    output = tmp_path / "out"
    with RunLock(output):
        for words in ([], ["--check"]):
            assert run(folder, output, *words) == 2
            said = capsys.readouterr().err.splitlines()[-1]
            assert f"trainer.output_dir={output} is in use by process" in said
    assert sorted(path.name for path in output.iterdir()) == [".prime_ext.lock"]
    assert run(folder, output, "--check") == 0


def test_a_separator_of_a_shell_is_a_line_break(folder, tmp_path):
    words = [f"model.path={folder / 'bert'}", "data.files=x.parquet"]
    words += [f"trainer.output_dir={tmp_path}", r'data.separator="\n"', "data.layout=text"]
    assert compose(words).data.pair_format().separator == "\n"
