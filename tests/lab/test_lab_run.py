# SPDX-License-Identifier: Apache-2.0
"""Runs: files, resuming, and what is refused. Reports: crossings, censoring, paired ratios."""

import sys

import pytest

from prime_ext.config.checks import SettingsError
from prime_ext.utils.files import write_json_lines
from recipes.lab_study import report, run
from recipes.study_runs import RUNS, keep_run, read_runs

SMALL = ["rollout.prompts=5", "actor.mini_batches=1"]


@pytest.fixture
def tiny_task(task, start, tmp_path, monkeypatch):
    """The tiny task under a name, its warm start in place."""
    monkeypatch.setitem(run.TASKS, "tiny", task)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "start").symlink_to(start)
    return tmp_path


def test_a_run_leaves_one_line_and_is_skipped_the_second_time(tiny_task, monkeypatch, capsys):
    run.run("tiny", ["rloo", "guarded", *SMALL], [0, 1], tiny_task, 40)
    name = "guarded,actor.mini_batches=1,rollout.prompts=5"
    first = read_runs(tiny_task / "tiny")
    result = first[f"{name}_seed1"]
    assert [point["rollouts"] for point in result["curve"]] == [0, 40]
    assert result["method"] == name and result["seed"] == 1 and result["budget"] == 40
    assert result["settings"]["rollout.prompts"] == 5 and result["settings"]["prm.beta"] == 0.2
    assert result["curve"][1]["pair_accuracy"] is not None and result["curve"][1]["seconds"] > 0
    assert len(result["commit"]) >= 40
    assert len(first) == 4

    write_json_lines(tiny_task / "tiny" / RUNS, ({"run": key, **kept} for key, kept in first.items() if kept != result))
    monkeypatch.setattr(run, "train", lambda lab, budget, progress: [{"rollouts": 7}])
    run.run("tiny", ["rloo", "guarded", *SMALL], [0, 1], tiny_task, 40)
    second = read_runs(tiny_task / "tiny")
    assert [key for key in first if second[key] != first[key]] == [f"{name}_seed1"] and list(second) == list(first)
    run.run("tiny", ["rloo", *SMALL], [0, 1], tiny_task, 40)
    assert "all runs are there" in capsys.readouterr().out


def test_a_run_with_another_budget_is_not_taken_for_this_one(tiny_task):
    run.run("tiny", ["rloo", *SMALL], [0], tiny_task, 20)
    with pytest.raises(SettingsError, match="another budget; choose another --output"):
        run.run("tiny", ["rloo", *SMALL], [0], tiny_task, 40)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["compakt", "rloo"], "task='compakt'"),
        (["compact", "rlo"], "method='rlo'"),
        (["compact", "rloo", "prm.epoch=2"], "unknown key prm.epoch"),
        (["compact", "prm.epochs=2"], "no method"),
        (["compact", "rloo", "--seeds", "1-3"], "--seeds=1-3"),
        (["compact", "rloo", "--rollouts", "0"], "--rollouts=0"),
    ],
)
def test_bad_arguments_end_in_one_line_before_anything_is_written(arguments, message, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run", *arguments, "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stop:
        run.main()
    assert str(stop.value).startswith("error: ") and message in str(stop.value) and "\n" not in str(stop.value)
    assert not (tmp_path / "out").exists()


def curve(*accuracies, seconds=0.01):
    return [
        {"rollouts": 100 * k, "seconds": 100 * k * seconds, "accuracy": a} | dict.fromkeys(report.MEASURES)
        for k, a in enumerate(accuracies)
    ]


@pytest.mark.parametrize(
    "baseline_arrives, method_arrives, bound, n",
    [
        ((True, False), (True, True), ">", 2),
        ((True, True), (False, True), "<", 2),
        ((True, False), (False, True), "?", 2),
        ((True, False), (True, False), "", 1),
    ],
)
def test_runs_that_do_not_arrive_make_a_ratio_a_bound(baseline_arrives, method_arrives, bound, n):
    baseline = {seed: (200.0, arrives) for seed, arrives in enumerate(baseline_arrives)}
    method = {seed: (100.0, arrives) for seed, arrives in enumerate(method_arrives)}
    found = report.paired_ratio(baseline, method)
    assert (found["bound"], found["n"], found["ahead"]) == (bound, n, n)
    # The geometric mean of pairs that are all 2.
    assert found["ratio"] == pytest.approx(2.0) and found["log_error"] == (0.0 if n == 2 else None)
    assert report.paired_ratio({0: (1.0, False)}, {0: (1.0, False)}) is None


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--baseline", "ppo"], "--baseline=ppo"),
        (["--accuracies", "0.1"], "--accuracies=0.1"),
        (["--accuracies", "high"], "--accuracies=high"),
    ],
)
def test_a_report_that_cannot_be_written_says_why(arguments, message, tmp_path, monkeypatch):
    keep_run(tmp_path, "rloo_seed0", {"method": "rloo", "seed": 0, "curve": curve(0.2, 0.5)})
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path), *arguments])
    with pytest.raises(SystemExit, match="^error: " + message):
        report.main()
    assert not (tmp_path / "report.md").exists()
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path), "--accuracies", "0.3"])
    report.main()
    # 100 rollouts from 0.2 to 0.5. tests/recipes/test_studies.py has the tables of the kept runs.
    assert "| rloo | 1 | 33.3 | - | - | - |" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "report.png").stat().st_size > 10_000 and (tmp_path / "report.json").is_file()
