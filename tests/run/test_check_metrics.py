# SPDX-License-Identifier: Apache-2.0
"""What a finished run must have left, and how runs of every trainer end with it."""

import json
import sys
import types

import pytest

from prime_ext import train
from prime_ext.config.compose import compose_config
from prime_ext.offline_prm import __main__ as offline
from prime_ext.run.check_metrics import RunChecks, checks_of_rl
from prime_ext.step_rm import train as step_rm
from prime_ext.utils.files import write_json
from recipes.smoke.prepare import overrides, prepare

METRICS = {
    1: {"prm/loss": 0.7, "critic/score/mean": 0.1, "training/epoch": 0},
    2: {"prm/loss": None, "critic/score/mean": 0.3},
    3: {"prm/loss": 0.5, "critic/score/mean": 0.5, "training/epoch": 1},
}
# What the stand-ins for trainers log.
LOGGED = {"train/loss": 2.0, "train/grad_norm": 1.0}
RL_LOGGED = dict.fromkeys(("actor/pg_loss", "actor/grad_norm", "prm/loss", "prm/grad_norm"), 0.5)


def write(path, metrics):
    path.write_text("".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in metrics.items()))


@pytest.mark.parametrize(
    ("finite", "reached", "reason"),
    [
        ((), {"step": 3}, None),
        (("critic/score/mean",), {"step": 592, "training/epoch": 1}, None),
        ((), {"step": 592}, "the run did not reach step 592; it ended at step 3"),
        ((), {"x": 1}, "the run did not reach x 1; it ended at nothing that was logged"),
        (("prm/loss",), {}, "prm/loss is not a finite number in step 2"),
        (("prm/grad_norm",), {}, "prm/grad_norm was never logged"),
    ],
)
def test_each_problem_is_one_line(tmp_path, finite, reached, reason):
    write(tmp_path / "metrics.jsonl", METRICS)
    assert RunChecks(tmp_path / "metrics.jsonl", finite, reached).problems() == ([reason] if reason else [])


def test_missing_steps_checkpoints_and_metrics_are_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert RunChecks(path, ()).problems() == [f"{path} has no metrics"]
    write(path, {step: {"x": 1.0} for step in [1, 2, 5, 9, 12]})
    gaps = "no metrics of steps 3, 4, 6, 7, 8 and 2 more"
    assert RunChecks(path, (), checkpoints=tmp_path).problems() == [gaps, f"{tmp_path} has no whole checkpoint"]
    assert RunChecks(path, (), without_gaps=False).problems() == []
    # A run that was resumed in another folder starts later.
    write(path, {5: {}, 6: {}})
    assert RunChecks(path, ()).problems() == []


def test_the_default_follows_the_configuration(tmp_path, monkeypatch):
    def checks(*words, name="prime_trainer"):
        return checks_of_rl(compose_config(name, words), tmp_path)

    assert checks() is None
    monkeypatch.setenv("PRIME_EXT_CHECKS", "default")
    complete = checks("trainer.total_training_steps=592", "trainer.total_epochs=3")
    assert complete.reached == {"step": 592, "training/epoch": 2}
    assert complete.finite == ("actor/pg_loss", "actor/grad_norm", "prm/loss", "prm/grad_norm")
    assert checks("trainer.total_epochs=3").reached == {"training/epoch": 2}
    assert checks("variant=paper", "prm=frozen").finite == ("actor/pg_loss", "actor/grad_norm")
    late = checks("trainer.total_training_steps=2", "trainer.critic_warmup=2", name="pspo_trainer")
    assert late.finite == ("critic/vf_loss", "critic/grad_norm")


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Runs the command on a trainer of verl that only writes two steps and a checkpoint."""
    path, folder, inputs = tmp_path / "metrics.jsonl", tmp_path / "checkpoints" / "global_step_2", tmp_path / "inputs"
    prepare("prime", inputs)
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(path))
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "prime_ext.plugin")
    given = ["--config-name=prime_trainer_cpu", *overrides("prime", inputs)]

    def run(checks, *words, main=None, logged=RL_LOGGED):
        def verl_main():
            write(path, dict.fromkeys((1, 2), logged))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "prime_ext_complete.json").write_text('{"files": {}}')

        monkeypatch.setitem(sys.modules, "verl.trainer.main_ppo", types.SimpleNamespace(main=main or verl_main))
        monkeypatch.setenv("PRIME_EXT_CHECKS", checks)
        monkeypatch.setattr(sys, "argv", ["train", *given, f"trainer.default_local_dir={folder.parent}", *words])
        train.main()

    return run


def test_a_run_ends_well_or_with_1(trained, capsys):
    trained("default")
    assert "all checks of the run hold" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="1"):
        trained("default", logged=RL_LOGGED | {"prm/loss": None})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("prm/loss is not a finite number in steps 1, 2")
    # A run that fails has its own status.
    with pytest.raises(SystemExit, match="7"):
        trained("default", main=lambda: sys.exit(7))


def test_modules_of_the_user_reach_the_workers_of_a_running_cluster(trained, monkeypatch):
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "json")
    monkeypatch.setenv("RAY_ADDRESS", "head:1")
    trained("default")
    assert "++ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES='prime_ext.plugin,json'" in sys.argv


@pytest.mark.parametrize(
    ("checks", "word", "hint"),
    [
        ("default;loss < 3", "trainer.save_freq=2", "PRIME_EXT_CHECKS=default;loss < 3 is not known"),
        ("default", "trainer.logger=[console]", "add `file` to trainer.logger"),
        ("default", "data.seed=2", "global_step_2 was trained with data.seed 1, now it is 2; choose another"),
    ],
)
def test_a_run_that_cannot_be_checked_or_resumed_does_not_start(trained, tmp_path, capsys, checks, word, hint):
    write(tmp_path / "metrics.jsonl", {1: LOGGED})
    marker = {"files": {}, "identity": {"data.seed": [1, 1]}}
    write_json(tmp_path / "checkpoints" / "global_step_2" / "prime_ext_complete.json", marker)
    with pytest.raises(SystemExit) as end:
        trained(checks, word, main=lambda: pytest.fail("the run was started"))
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and len(lines) == 1 and hint in lines[0]
    assert (tmp_path / "metrics.jsonl").exists()


def test_other_trainers_reach_their_last_epoch_unless_they_may_stop_early(tmp_path):
    words = ["model.path=m", "data.files=f.parquet", f"trainer.output_dir={tmp_path}", "optim.epochs=10"]
    for patience, epoch, holds in ((0, 9.0, False), (0, 9.5, True), (3, 0.1, True)):
        write(tmp_path / "metrics.jsonl", {1: {"train_loss": 1.0, "eval_loss": 1.0}, 4: {"epoch": epoch}})
        checks = step_rm.checks_of(step_rm.compose([*words, f"trainer.patience={patience}"]))
        assert (checks.problems() == []) is holds
    words = ["model.path=m", "data.train_files=f.parquet", f"trainer.output_dir={tmp_path}", "trainer.device=cpu"]
    _, settings = offline.compose([*words, "trainer.epochs=2"])
    for epoch, holds in ((2.0, True), (1.5, False)):
        write(tmp_path / "metrics.jsonl", dict.fromkeys((1, 2), {**LOGGED, "train/epoch": epoch}))
        assert (offline.checks_of(settings).problems() == []) is holds
