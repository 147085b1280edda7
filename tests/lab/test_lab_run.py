# SPDX-License-Identifier: Apache-2.0
"""Runs: files, resuming, and what is refused. Reports: crossings, censoring, paired ratios."""

import math
import sys

import pytest

from prime_ext.config.checks import SettingsError
from prime_ext.utils.files import read_json, write_json
from recipes.lab_study import report, run

SMALL = ["rollout.prompts=5", "actor.mini_batches=1"]


@pytest.fixture
def tiny_task(task, start, tmp_path, monkeypatch):
    """The tiny task under a name, its warm start in place."""
    monkeypatch.setitem(run.TASKS, "tiny", task)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "start").symlink_to(start)
    return tmp_path


def test_a_run_leaves_one_file_and_is_skipped_the_second_time(tiny_task, monkeypatch, capsys):
    run.run("tiny", ["rloo", "guarded", *SMALL], [0, 1], tiny_task, 40)
    name = "guarded,actor.mini_batches=1,rollout.prompts=5"
    result = read_json(tiny_task / "tiny" / f"{name}_seed1.json")
    assert [point["rollouts"] for point in result["curve"]] == [0, 40]
    assert result["method"] == name and result["seed"] == 1 and result["budget"] == 40
    assert result["settings"]["rollout.prompts"] == 5 and result["settings"]["prm.beta"] == 0.2
    assert result["curve"][1]["pair_accuracy"] is not None and result["curve"][1]["seconds"] > 0
    assert len(result["commit"]) >= 40
    before = {path: path.stat().st_mtime_ns for path in (tiny_task / "tiny").glob("*.json")}
    assert len(before) == 4

    (tiny_task / "tiny" / f"{name}_seed1.json").unlink()
    monkeypatch.setattr(run, "train", lambda lab, budget, progress: [{"rollouts": 7}])
    run.run("tiny", ["rloo", "guarded", *SMALL], [0, 1], tiny_task, 40)
    changed = [path.name for path, time in before.items() if path.stat().st_mtime_ns != time]
    assert changed == [f"{name}_seed1.json"]
    run.run("tiny", ["rloo", *SMALL], [0, 1], tiny_task, 40)
    assert "all runs are there" in capsys.readouterr().out


def test_a_run_with_another_budget_is_not_taken_for_this_one(tiny_task):
    run.run("tiny", ["rloo", *SMALL], [0], tiny_task, 20)
    with pytest.raises(SettingsError, match="another budget; choose another --output"):
        run.run("tiny", ["rloo", *SMALL], [0], tiny_task, 40)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["compakt", "rloo"], "task='compakt' is not one of compact, compact2"),
        (["compact", "rlo"], "method='rlo' is not one of rloo, rloo_ema"),
        (["compact", "rloo", "prm.epoch=2"], "unknown key prm.epoch; known keys:"),
        (["compact", "prm.epochs=2"], "no method was named"),
        (["compact", "rloo", "--seeds", "1-3"], "--seeds=1-3 must be whole numbers with commas between them"),
        (["compact", "rloo", "--rollouts", "0"], "--rollouts=0 must be a whole number >= 1"),
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


def test_a_crossing_is_interpolated_and_the_first_one_counts():
    runs = {seed: {"curve": curve(*points)} for seed, points in enumerate([(0.2, 0.4, 0.8, 0.3, 0.9), (0.2, 0.4, 0.3)])}
    assert report.arrivals(runs, "rollouts", 0.5) == {0: (pytest.approx(125), True), 1: (200, False)}
    assert report.arrivals(runs, "seconds", 0.8)[0] == (pytest.approx(2.0), True)


def test_ratios_are_geometric_means_of_pairs():
    baseline = {0: (400.0, True), 1: (100.0, True), 2: (90.0, True)}
    found = report.paired_ratio(baseline, {0: (100.0, True), 1: (100.0, True), 9: (1.0, True)})
    assert found["ratio"] == pytest.approx(2.0) and found["n"] == 2 and found["ahead"] == 1
    # Logs are ln 4 and 0: standard deviation ln 4 / sqrt 2, over sqrt 2.
    assert found["log_error"] == pytest.approx(math.log(4) / 2) and found["bound"] == ""


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
    assert (found["bound"], found["n"]) == (bound, n)
    assert report.paired_ratio({0: (1.0, False)}, {0: (1.0, False)}) is None


def test_a_report_from_files(tmp_path, monkeypatch, capsys):
    for seed, (slow, fast) in enumerate([((0.2, 0.4, 0.6), (0.2, 0.6, 0.7)), ((0.2, 0.3, 0.5), (0.2, 0.5, 0.5))]):
        for method, points in (("distilled", fast), ("rloo", slow)):
            row = {"method": method, "seed": seed, "curve": curve(*points)}
            write_json(tmp_path / f"{method}_seed{seed}.json", row)
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path), "--accuracies", "0.5,0.6"])
    report.main()
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert "| rloo | 2 | 175 | >200 | - | - | - |" in lines
    # 150 / 75 and 200 / 100; of the second pair neither reaches 0.6.
    assert "| distilled | 2 | 87.5 (2.00 ± 0.00, 2/2) | >150 (2.00, 1/1) | - | - | - |" in lines
    assert lines[4].startswith("| rloo ")
    assert (tmp_path / "report.png").stat().st_size > 10_000
    summary = read_json(tmp_path / "report.json")["methods"]
    assert summary["distilled"]["rollouts"]["0.6"]["arrived"] == 1
    assert "distilled" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--baseline", "ppo"], "--baseline=ppo has no runs here; there are: rloo"),
        (["--accuracies", "0.1"], "--accuracies=0.1 is not above the start, 0.2"),
        (["--accuracies", "high"], "--accuracies=high must be numbers"),
    ],
)
def test_a_report_that_cannot_be_written_says_why(arguments, message, tmp_path, monkeypatch):
    write_json(tmp_path / "rloo_seed0.json", {"method": "rloo", "seed": 0, "curve": curve(0.2, 0.5)})
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path), *arguments])
    with pytest.raises(SystemExit, match="^error: " + message):
        report.main()
    assert not (tmp_path / "report.md").exists()
