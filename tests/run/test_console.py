# SPDX-License-Identifier: Apache-2.0
"""One readable line for each step and validation."""

import itertools
import math
from types import SimpleNamespace

import pytest
from verl.trainer.ppo.v1 import trainer_base

from prime_ext.run.console import ConsoleLines
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
    "pspo/acc": 0.25,
    "pspo/step_score": 0.62,
    "pspo/n_steps/mean": math.nan,
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
