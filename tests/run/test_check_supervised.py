# SPDX-License-Identifier: Apache-2.0
"""The supervised trainers check their own metrics: SFT, step reward model, offline PRM."""

import json
import sys
import types

import pytest

from prime_ext import sft
from prime_ext.offline_prm import __main__ as offline
from prime_ext.run.check_metrics import RunChecks
from prime_ext.step_rm.train import __main__ as step_rm

LOGGED = {"train/loss": 2.0, "train/grad_norm": 1.0}


def write(path, steps, values):
    path.write_text("".join(json.dumps({"step": step, "data": values}) + "\n" for step in steps))


# ---- SFT ----


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Runs prime_ext.sft's main on a trainer that only writes down two steps and a checkpoint."""
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(path))
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.delenv("RANK", raising=False)
    root = tmp_path / "checkpoints"

    def verl_main():
        write(path, (1, 2), LOGGED)
        (root / "global_step_2").mkdir(parents=True, exist_ok=True)
        (root / "latest_checkpointed_iteration.txt").write_text("2")

    def run(*words, checks="default", main=verl_main):
        monkeypatch.setitem(sys.modules, "verl.trainer.sft_trainer", types.SimpleNamespace(main=main))
        monkeypatch.setenv("PRIME_EXT_CHECKS", checks)
        own = [f"trainer.default_local_dir={root}", "model.path=some/model", "data.train_files=some.parquet"]
        monkeypatch.setattr(sys, "argv", ["sft", *own, "trainer.logger=[console,file]", *words])
        sft.main()

    return run


def test_an_sft_run_keeps_what_an_earlier_start_wrote_and_ends_well_or_with_1(trained, tmp_path, capsys):
    write(tmp_path / "metrics.jsonl", (1,), LOGGED)
    trained("trainer.total_training_steps=2")
    assert "all 5 conditions hold" in capsys.readouterr().out
    assert len((tmp_path / "metrics.part0.jsonl").read_text().splitlines()) == 1
    with pytest.raises(SystemExit) as end:
        trained("trainer.total_training_steps=3", checks="default;last(train/loss) < 1")
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == 1 and len(lines) == 2 and "last(step) >= 3" in lines[0]


@pytest.mark.parametrize(
    ("word", "checks", "hint"),
    [
        ("optim.lr=-1", "default", "optim.lr"),
        ("model.pth=x", "default", "pth"),
        ("trainer.logger=[console]", "default", "add `file` to trainer.logger"),
        ("trainer.seed=1", "loss < 3", "'loss' is neither a number nor"),
    ],
)
def test_an_sft_run_that_cannot_work_does_not_start(trained, tmp_path, capsys, word, checks, hint):
    write(tmp_path / "metrics.jsonl", (1,), LOGGED)
    with pytest.raises(SystemExit) as end:
        trained(word, checks=checks, main=lambda: pytest.fail("the run was started"))
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and len(lines) == 1 and hint in lines[0]
    assert (tmp_path / "metrics.jsonl").exists()


def test_other_ranks_neither_check_nor_touch_files(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    write(tmp_path / "metrics.jsonl", (1,), LOGGED)
    trained("trainer.total_training_steps=3", main=lambda: None)
    assert (tmp_path / "metrics.jsonl").exists() and "conditions" not in capsys.readouterr().out


# ---- step reward model, offline PRM ----


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["optim.epochs=10", "trainer.patience=0"], "last(epoch) > 9"),
        (["optim.epochs=0.5", "trainer.patience=0"], "last(epoch) > 0"),
        (["trainer.patience=3"], "finite(train_loss)"),
    ],
)
def test_a_step_reward_model_reaches_its_last_epoch_unless_it_may_stop_early(words, first):
    settings = step_rm.compose(["model.path=m", "data.files=f.parquet", "trainer.output_dir=out", *words])
    assert step_rm.default_conditions(settings)[0] == first


@pytest.mark.parametrize(("epoch", "holds"), [(2.0, True), (1.5, False)])
def test_an_offline_prm_makes_all_its_epochs(tmp_path, monkeypatch, epoch, holds):
    monkeypatch.setenv("PRIME_EXT_CHECKS", "default")
    path = tmp_path / "metrics.jsonl"
    write(path, (1, 2), {**LOGGED, "train/epoch": epoch})
    given = ["model.path=some/model", "data.train_files=f.parquet", "trainer.output_dir=out", "trainer.device=cpu"]
    _, settings = offline.compose([*given, "trainer.epochs=2"])
    checks = RunChecks.from_environment(path, offline.default_conditions(settings))
    assert (checks.run() == []) is holds


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (step_rm.main, ["model.path=m", "data.files=f.parquet", "trainer.output_dir=out"]),
        (offline.main, ["model.path=some/m", "data.train_files=f.parquet", "trainer.output_dir=out"]),
    ],
)
def test_a_condition_that_cannot_be_read_is_found_before_the_data(monkeypatch, capsys, main, words):
    monkeypatch.setenv("PRIME_EXT_CHECKS", "finite[x]")
    monkeypatch.delenv("RANK", raising=False)
    assert main([*words, "trainer.device=cpu"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "finite[x]" in lines[0]
