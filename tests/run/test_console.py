# SPDX-License-Identifier: Apache-2.0
"""One readable line for each step, validation and checkpoint."""

import itertools
import math
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from verl.utils.tracking import Tracking

from prime_ext.run.console import ConsoleLines, duration, lines_in, prints_lines

PRIME = {"prime/accuracy/before_filter": 0.5416666, "critic/score/mean": 0.5625, "prm/reward_sum/mean": -1.83e-05}
PRIME |= {"prm/pair_accuracy/before_update": 0.153846, "response_length/mean": 8.5625, "actor/grad_norm": 0.3}
PRIME |= {"prime/response_length/cut_off": 0.5, "timing_s/step": 4.25}


def clock(*seconds):
    """A clock that says these, one after the other."""
    return iter(seconds).__next__


@pytest.mark.parametrize(
    ("metrics", "step", "line"),
    [
        (
            PRIME,
            1,
            "step 1/80  accuracy 0.542  reward 0.562  process reward -1.83e-05  PRM pairs right 0.154  "
            "length 9 tokens  cut off 50.0%  4.2 s  13 min left",
        ),
        # What is not measured is left out, and after the last step the time.
        (
            {"pspo/acc": 0.25, "pspo/step_score": 0.62, "pspo/n_steps/mean": math.nan, "timing_s/step": 5.0},
            80,
            "step 80/80  accuracy 0.250  step score 0.620  5.0 s",
        ),
    ],
)
def test_a_step_is_one_line(capsys, metrics, step, line):
    ConsoleLines(80, clock(100.0, 110.0)).log(metrics, step)
    assert capsys.readouterr().out == line + "\n"


def test_a_duration_has_its_two_largest_units():
    said = {89.4: "89 s", 90.0: "2 min", 12000.0: "3 h 20 min", 187200.0: "2 d 4 h"}
    assert {seconds: duration(seconds) for seconds in said} == said


def test_lines_are_for_those_who_asked_for_the_console():
    asked = [{"logger": ["console", "file"]}, {"logger": "console", "console": "lines"}]
    others = [{"logger": ["console"], "console": "verl"}, {"logger": ["file"]}, {"logger": None}]
    assert all(prints_lines(OmegaConf.create({"trainer": trainer})) for trainer in asked)
    assert not any(prints_lines(OmegaConf.create({"trainer": trainer})) for trainer in others)


def test_the_time_left_is_that_of_the_last_twenty_steps(capsys):
    # A first step of 1000 s, then 2 s each.
    console = ConsoleLines(100, clock(0.0, *itertools.accumulate([1000.0] + 30 * [2.0])))
    for step in range(1, 32):
        console.log({"timing_s/step": 2.0}, step)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.endswith("  1 d 3 h left") and last == "step 31/100  2.0 s  2 min left"


def test_validation_has_a_line_of_its_own_before_and_during_training(capsys):
    console = ConsoleLines(9, clock(0.0, 5.0))
    scores = {"val-core/org/set/acc/mean@4": 0.25, "val-core/gsm8k/acc/mean@1": 0.5, "val-aux/gsm8k/reward/mean@1": 0.1}
    console.log(scores, 0)
    console.log({**scores, "timing_s/step": 1.0}, 3)
    line = "org/set acc mean@4 0.250  gsm8k acc mean@1 0.500"
    assert capsys.readouterr().out.splitlines() == [
        f"validation after step 0  {line}",
        "step 3/9  1.0 s  30 s left",
        f"validation after step 3  {line}",
    ]


def test_verls_loggers_keep_everything_and_its_own_printing_is_back_afterwards(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    printed = []
    module = SimpleNamespace(Tracking=Tracking, tqdm=lambda **options: printed.append(options), pprint=printed.append)
    before = dict(vars(module))
    with lines_in(module, ConsoleLines(4, clock(0.0, 2.0))):
        tracking = module.Tracking("project", "experiment", ["console", "file"])
        module.tqdm(total=4)
        module.pprint("Final validation metrics: ...")
        tracking.log(data=PRIME, step=4)
        tracking.finish()
    assert vars(module) == before and printed == [{"total": 4, "disable": True}]
    assert "actor/grad_norm" in (tmp_path / "metrics.jsonl").read_text()
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("step 4/4  accuracy 0.542") for line in lines) == 1
    assert not any("grad_norm" in line for line in lines)
