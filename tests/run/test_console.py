# SPDX-License-Identifier: Apache-2.0
"""One readable line for each step and validation."""

import itertools
import math
import sys
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import trainer_base

from prime_ext.config.compose import compose_config
from prime_ext.run.checkpoint import mark_complete
from prime_ext.run.console import ConsoleLines, copy_output
from prime_ext.verl_adapter.patches.trainer_base import replace_loggers

PRIME = {
    "prime/accuracy/before_filter": 0.5416666,
    "critic/score/mean": 0.5625,
    "prm/reward_sum/mean": -1.83e-05,
}
PRIME |= {
    "prm/pair_accuracy/before_update": 0.153846,
    "response_length/mean": 8.5625,
    "actor/grad_norm": 0.3,
}
PRIME |= {"prime/response_length/cut_off": 0.5, "timing_s/step": 4.25}
PSPO = {
    "prime/accuracy/before_filter": 0.25,
    "prm/step_score": 0.62,
    "prime/steps/mean": math.nan,
    "timing_s/step": 5.0,
}
PRIME_LINE = (
    "accuracy (all) 0.542  reward (kept) 0.562  process reward -1.83e-05  PRM pairs right 0.154  "
)
PRIME_LINE += "length 9 tokens  cut off 50.0%"


def clock(*seconds):
    return iter(seconds).__next__


@pytest.mark.parametrize(
    # Missing metrics are left out, and after the last step the time.
    ("metrics", "step", "line"),
    [
        (PRIME, 1, f"{PRIME_LINE}  4.2 s  0:13:10 left"),
        (PSPO, 80, "accuracy (all) 0.250  step score 0.620  5.0 s"),
    ],
)
def test_a_step_is_one_line(capsys, metrics, step, line):
    ConsoleLines(80, clock(100.0, 110.0)).log(metrics, step)
    assert capsys.readouterr().out == f"step {step}/80  {line}\n"


def test_the_time_left_is_that_of_the_last_twenty_steps(capsys):
    # A first step of 1000 s, then 2 s each.
    console = ConsoleLines(100, clock(0.0, *itertools.accumulate([1000.0] + 30 * [2.0])))
    for step in range(1, 32):
        console.log({"timing_s/step": 2.0}, step)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.endswith("  1 day, 3:30:00 left") and last == "step 31/100  2.0 s  0:02:18 left"


def test_validation_has_a_line_before_and_during_training(capsys):
    console = ConsoleLines(9, clock(0.0, 5.0))
    scores = {
        "val-core/org/set/acc/mean@4": 0.25,
        "val-core/gsm8k/acc/mean@1": 0.5,
        "val-aux/gsm8k/reward/mean@1": 0.1,
    }
    console.log(scores, 0)
    console.log({**scores, "timing_s/step": 1.0}, 3)
    line = "org/set acc mean@4 0.250  gsm8k acc mean@1 0.500"
    assert capsys.readouterr().out.splitlines() == [
        f"validation after step 0  {line}",
        "step 3/9  1.0 s  0:00:30 left",
        f"validation after step 3  {line}",
    ]


@pytest.mark.parametrize("listed", [["console", "file"], ["file"], "console"])
def test_loggers_are_replaced_by_name_and_the_module_is_restored(monkeypatch, capsys, listed):
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "/nowhere/metrics.jsonl")
    bars = []
    logged = []
    file = SimpleNamespace(log=lambda data, step: logged.append((step, data)), finish=lambda: None)
    console = {"console": ConsoleLines(4, clock(0.0, 2.0))} if "console" in listed else {}
    monkeypatch.setattr(trainer_base, "tqdm", lambda **options: bars.append(options))
    before = dict(vars(trainer_base))
    with replace_loggers({**console, **({"file": file} if "file" in listed else {})}):
        tracking = trainer_base.Tracking(
            project_name="p", experiment_name="e", default_backend=listed
        )
        trainer_base.tqdm(total=4)
        tracking.log(data=PRIME, step=4)
        tracking.finish()
    assert vars(trainer_base) == before and bars == [{"total": 4, "disable": bool(console)}]
    assert logged == ([(4, PRIME)] if "file" in listed else [])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("step 4/4  accuracy (all) 0.542") for line in lines) == bool(console)
    assert not any("grad_norm" in line for line in lines)


WORKER = "\x1b[36m(TaskRunnerV1 pid=12)\x1b[0m "


@pytest.fixture
def printed(tmp_path, capsys):
    """Return a function that prints lines in a run, and returns those of console and log."""

    def run(lines, *overrides):
        folder = tmp_path / "checkpoints"
        words = ["data.train_files=a.parquet", "actor_rollout_ref.model.path=some/model"]
        words += [f"trainer.default_local_dir={folder}", *overrides]
        with copy_output(compose_config("prime_trainer_cpu", words)):
            for line in lines:
                print(line, file=sys.stderr if "warning" in line else sys.stdout)
            print("without an end", end="")
        out, err = capsys.readouterr()
        log = (folder / "console.log").read_text().splitlines()
        return out.splitlines(), err.splitlines(), log

    return run


def test_before_the_first_step_there_is_one_screen(printed, tmp_path):
    noise = [f"{WORKER}'sandbox_fusion': {{'max_concurrent': None}}", f"{WORKER}a warning"] * 600
    step = f"{WORKER}step 1/80  accuracy (all) 0.2"
    out, err, log = printed(
        [*noise, f"{WORKER}prime_ext: PRIME-D, variant distilled", step, f"{WORKER}a warning"],
        "trainer.total_training_steps=80",
        "data.val_files=[b.parquet,c.parquet]",
    )
    folder = tmp_path / "checkpoints"
    assert out == [
        "prime_ext: PRIME-D, variant distilled",
        "prime_ext: 80 steps of 1024 prompts x 4 rollouts; ranks: 1 (cpu)",
        "prime_ext: model: some/model",
        "prime_ext: data: a.parquet; validation: b.parquet, c.parquet",
        f"prime_ext: checkpoints: {folder}",
        f"prime_ext: output: {folder}/console.log; configuration: {folder}/configuration.yaml",
        "prime_ext: starting Ray, the models and the transformers servers; console.log has what"
        " they print meanwhile",
        "step 1/80  accuracy (all) 0.2",
        "without an end",
    ]
    # After the first step everything is shown, as it was printed.
    assert err == [f"{WORKER}a warning"]
    assert len(log) == 7 + 1200 + 4 and log[7:1207] == noise and step in log


def test_the_last_line_of_the_screen_says_what_starts(printed):
    gpu = ["actor_rollout_ref.rollout.name=vllm", "trainer.device=cuda"]
    out, _, _ = printed([f"{WORKER}loading"], *gpu)
    assert out[6].startswith("prime_ext: starting Ray, the models and the vllm servers, an est")


def test_an_error_and_what_follows_it_are_shown(printed):
    lines = [
        f"{WORKER}loading",
        f"{WORKER}Traceback (most recent call last):",
        f'{WORKER}  File "x.py"',
    ]
    out, _, log = printed([*lines, "later"])
    assert out[7:] == [*lines[1:], "later", "without an end"] and log[7:11] == [*lines, "later"]


@pytest.mark.parametrize("other", ["trainer.logger=[file]", "trainer.v1.trainer_mode=sync"])
def test_without_lines_about_steps_nothing_is_hidden(printed, other):
    out, _, _ = printed([f"{WORKER}loading"], other)
    assert out[7:] == [f"{WORKER}loading", "without an end"]


def test_a_resumed_run_appends_to_its_output(printed, tmp_path):
    printed(["first"])
    step = tmp_path / "checkpoints" / "global_step_40"
    step.mkdir()
    mark_complete(step, {"global_step": 40})
    out, _, log = printed(["second"])
    assert out[4].endswith("checkpoints, of which the last is of step 40")
    assert [line for line in log if line in ("first", "second")] == ["first", "second"]
    saved = OmegaConf.load(tmp_path / "checkpoints" / "configuration.yaml")
    assert saved.prime.variant == "distilled" and saved.trainer.device == "cpu"
