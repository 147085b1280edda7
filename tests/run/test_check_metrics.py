# SPDX-License-Identifier: Apache-2.0
"""Conditions over the metrics of a run: what they say and answer, and how runs of every trainer end with them."""

import json
import re
import sys
import types
from contextlib import nullcontext

import pytest

from prime_ext import sft, train
from prime_ext.config.compose import compose_config
from prime_ext.offline_prm import __main__ as offline
from prime_ext.run import check_metrics
from prime_ext.run.check_metrics import ConditionError, RunChecks, default_conditions, parse
from prime_ext.step_rm.train import __main__ as step_rm
from recipes.smoke.prepare import overrides, prepare

METRICS = {
    1: {"prm/loss": 0.7, "critic/score/mean": 0.1, "actor/lr": 1e-6},
    2: {"prm/loss": None, "critic/score/mean": 0.3, "val-core/openai/gsm8k/acc/mean@4": 0.25},
    3: {"prm/loss": 0.5, "critic/score/mean": 0.5},
}

# What the stand-ins for trainers log.
LOGGED = {"train/loss": 2.0, "train/grad_norm": 1.0}
RL_LOGGED = dict.fromkeys(("actor/pg_loss", "actor/grad_norm", "prm/loss", "prm/grad_norm"), 0.5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("last(step) >= 3", None),
        ("count(step) == 3", None),
        ("complete(step)", None),
        ("finite(critic/score/mean)", None),
        ("complete(critic/score/mean)", None),
        ("complete(prm/loss)", None),
        ("max(critic/score/mean) < 1", None),
        ("min(critic/score/mean)>=.1", None),
        ("mean(critic/score/mean, last=2) > 0.39", None),
        ("mean( critic/score/mean , first=1 ) <= 1e-1", None),
        ("mean(critic/score/mean) != 0", None),
        ("last(critic/score/mean) > first(critic/score/mean)", None),
        ("last(prm/loss, first=1) == 0.7", None),
        ("count(actor/lr) == 1", None),
        ("max(val-core/openai/gsm8k/acc/mean@4) == 0.25", None),
        ("last(step) >= 592 or finite(actor/lr)", None),
        ("last(step) >= 592", "3 against 592"),
        ("finite(prm/loss)", "prm/loss is no finite number in step 2"),
        ("max(prm/loss) < 9", "prm/loss is no finite number in step 2"),
        ("count(prm/grad_norm) > 0", "prm/grad_norm was never logged"),
        ("complete(actor/lr)", "actor/lr of steps 2-3 missing"),
        ("last(step) >= 592 or last(x) > 1", "3 against 592; x was never logged"),
    ],
)
def test_what_does_not_hold_says_why_in_one_line(text, reason):
    assert parse(text).problem(METRICS) == (reason and f"{text}: {reason}")


def test_missing_steps_are_named():
    logged = {step: {"x": 1.0} for step in [1, 2, 5, 9, 10]}
    assert parse("complete(step)").problem(logged) == "complete(step): steps 3-4, 6-8 missing"
    # A run that was resumed in another folder starts later.
    assert parse("complete(step)").problem({5: {}, 6: {}}) is None


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("prm/loss < 1", "'prm/loss' is neither a number nor FUNCTION(NAME)"),
        ("median(prm/loss) < 1", "median is not one of first, last, min, max, mean, count"),
        ("finite(prm/loss) < 1", "finite is not one of first, last, min, max, mean, count"),
        ("last(prm/loss)", "not of the form"),
        ("last(prm/loss) < nan", "nan is no number to compare with"),
        ("mean(prm/loss, last=0) < 1", "last=0 must be >= 1"),
        ("finite(prm/loss, last=0)", "last=0 must be >= 1"),
        ("__import__('os').getcwd() == 1", "is neither"),
    ],
)
def test_what_is_no_condition_is_refused(text, hint):
    with pytest.raises(ConditionError, match=re.escape(hint)) as error:
        parse(text)
    assert "\n" not in str(error.value)


# ---- the command ----


def write(path, metrics):
    path.write_text("".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in metrics.items()))


@pytest.mark.parametrize(
    ("words", "status", "n_problems"),
    [
        (["complete(step)", "last(step) == 3"], 0, 0),
        (["finite(prm/loss)", "last(step) == 3", "finite(x)", "--checkpoints", "no_folder"], 1, 3),
        (["finite[x]"], 2, 1),
    ],
)
def test_the_command_reads_all_parts_of_an_interrupted_run(tmp_path, monkeypatch, capsys, words, status, n_problems):
    write(tmp_path / "metrics.part0.jsonl", {1: METRICS[1], 2: METRICS[2]})
    write(tmp_path / "metrics.jsonl", {3: METRICS[3]})
    monkeypatch.setattr(sys, "argv", ["check_metrics", str(tmp_path / "metrics.jsonl"), *words])
    with nullcontext() if status == 0 else pytest.raises(SystemExit) as end:
        check_metrics.main()
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == n_problems and ("all 2 conditions hold" in said.out) == (status == 0)
    assert status == 0 or end.value.code == status
    assert RunChecks(tmp_path / "none.jsonl", ()).problems() == [f"{tmp_path}/none.jsonl has no metrics"]


# ---- training runs ----


def conditions_of(*words, name="prime_trainer"):
    return default_conditions(compose_config(name, words))


def test_the_default_follows_the_configuration():
    asked = conditions_of("trainer.total_training_steps=592", "trainer.total_epochs=3")
    assert asked[:2] == ["last(step) >= 592 or last(training/epoch) >= 2", "complete(step)"]
    assert "finite(actor/pg_loss)" in asked and "finite(prm/loss)" in asked
    assert conditions_of("trainer.total_epochs=3")[0] == "last(training/epoch) >= 2"
    for words in (["prm.update_mode=none"], ["trainer.total_training_steps=2", "prm.update_freq=4"]):
        assert not any("prm/" in text for text in conditions_of(*words))
    late = conditions_of("trainer.total_training_steps=2", "trainer.critic_warmup=2", name="pspo_trainer")
    assert late[2:] == ["finite(critic/vf_loss)", "finite(critic/grad_norm)"]


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Runs the command ``rl`` or ``sft`` on a trainer of verl that only writes down two steps and a checkpoint."""
    path, folder, inputs = tmp_path / "metrics.jsonl", tmp_path / "checkpoints" / "global_step_2", tmp_path / "inputs"
    prepare("prime", inputs)
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(path))
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "prime_ext.plugin")
    monkeypatch.delenv("RANK", raising=False)
    of_sft = ["model.path=some/model", "data.train_files=some.parquet", "trainer.logger=[console,file]"]
    kinds = {
        "rl": (train, "main_ppo", ["--config-name=prime_trainer_cpu", *overrides("prime", inputs)], RL_LOGGED),
        "sft": (sft, "sft_trainer", of_sft, LOGGED),
    }

    def run(kind, checks, *words, main=None):
        module, of_verl, given, logged = kinds[kind]

        def verl_main():
            write(path, dict.fromkeys((1, 2), logged))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "prime_ext_complete.json").write_text("{}")
            (folder.parent / "latest_checkpointed_iteration.txt").write_text("2")

        monkeypatch.setitem(sys.modules, f"verl.trainer.{of_verl}", types.SimpleNamespace(main=main or verl_main))
        monkeypatch.setenv("PRIME_EXT_CHECKS", checks)
        monkeypatch.setattr(sys, "argv", [kind, *given, f"trainer.default_local_dir={folder.parent}", *words])
        module.main()

    return run


def test_a_run_ends_well_or_with_1_and_says_how_to_check_it_again(trained, tmp_path, capsys):
    trained("rl", "default;last(prm/loss) < 0.6")
    out = capsys.readouterr().out
    assert f"python -m prime_ext.run.check_metrics {tmp_path}/metrics.jsonl 'last(step) >= 2 or" in out
    assert "all 8 conditions hold" in out
    with pytest.raises(SystemExit, match="1"):
        trained("rl", "default;mean(critic/score/mean, last=20) > 0.3;last(prm/loss) < 0.4")
    problems = [line.split(": ", 2)[2].split(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert problems == ["mean(critic/score/mean, last=20) > 0.3", "last(prm/loss) < 0.4"]


def test_an_sft_run_keeps_what_an_earlier_start_wrote_and_ends_well_or_with_1(trained, tmp_path, capsys):
    write(tmp_path / "metrics.jsonl", {1: LOGGED})
    trained("sft", "default", "trainer.total_training_steps=2")
    assert "all 5 conditions hold" in capsys.readouterr().out
    assert len((tmp_path / "metrics.part0.jsonl").read_text().splitlines()) == 1
    with pytest.raises(SystemExit, match="1"):
        trained("sft", "default;last(train/loss) < 1", "trainer.total_training_steps=3")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "last(step) >= 3" in lines[0]


@pytest.mark.parametrize(
    ("kind", "checks", "word", "hint"),
    [
        ("rl", "default;loss < 3", "trainer.save_freq=2", "'loss' is neither a number nor"),
        ("rl", "default", "trainer.logger=[console]", "add `file` to trainer.logger"),
        ("sft", "loss < 3", "trainer.seed=1", "'loss' is neither a number nor"),
        ("sft", "default", "trainer.logger=[console]", "add `file` to trainer.logger"),
        ("sft", "default", "optim.lr=-1", "optim.lr"),
        ("sft", "default", "model.pth=x", "pth"),
    ],
)
def test_what_could_not_be_checked_or_cannot_work_does_not_start(trained, tmp_path, capsys, kind, checks, word, hint):
    write(tmp_path / "metrics.jsonl", {1: LOGGED})
    with pytest.raises(SystemExit) as end:
        trained(kind, checks, word, main=lambda: pytest.fail("the run was started"))
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and len(lines) == 1 and hint in lines[0]
    assert (tmp_path / "metrics.jsonl").exists()


def test_a_run_that_fails_has_its_own_status(trained):
    with pytest.raises(SystemExit, match="7"):
        trained("rl", "default", main=lambda: sys.exit(7))


def test_other_ranks_of_sft_neither_check_nor_touch_files(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    write(tmp_path / "metrics.jsonl", {1: LOGGED})
    trained("sft", "default", "trainer.total_training_steps=3", main=lambda: None)
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


OFFLINE = ["model.path=some/model", "data.train_files=f.parquet", "trainer.output_dir=out", "trainer.device=cpu"]


@pytest.mark.parametrize(("epoch", "holds"), [(2.0, True), (1.5, False)])
def test_an_offline_prm_makes_all_its_epochs(tmp_path, monkeypatch, epoch, holds):
    monkeypatch.setenv("PRIME_EXT_CHECKS", "default")
    write(tmp_path / "metrics.jsonl", dict.fromkeys((1, 2), {**LOGGED, "train/epoch": epoch}))
    _, settings = offline.compose([*OFFLINE, "trainer.epochs=2"])
    checks = RunChecks.from_environment(tmp_path / "metrics.jsonl", offline.default_conditions(settings))
    assert (checks.problems() == []) is holds


@pytest.mark.parametrize(
    ("main", "words"),
    [(offline.main, OFFLINE), (step_rm.main, ["model.path=m", "data.files=f.parquet", *OFFLINE[2:]])],
)
def test_a_condition_that_cannot_be_read_is_found_before_the_data(monkeypatch, capsys, main, words):
    monkeypatch.setenv("PRIME_EXT_CHECKS", "finite[x]")
    monkeypatch.delenv("RANK", raising=False)
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "finite[x]" in lines[0]
