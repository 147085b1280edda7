# SPDX-License-Identifier: Apache-2.0
"""Two runs are compared problem by problem, or refused in one line."""

import json
import statistics

import pytest
from eval_runs import make_run
from test_report import markdown_rows

from eval.compare import compare, main, signed
from eval.results import load_run
from prime_ext.utils.report_page import escape_markdown
from prime_ext.utils.run_store import RunError


def means(run, task):
    """Mean score of each problem."""
    found = {}
    for line in (run / task / "samples.jsonl").read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row["problem"], []).append(row["score"])
    return {name: statistics.fmean(scores) for name, scores in found.items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    tasks = ["aime2024", "amc", "math500"]
    settings = {"decoding": "recommended", "n": 4, "problems": 15}
    before = make_run(folder / "before", tasks, skill=0.3, **settings)
    after = make_run(folder / "after", [*tasks[1:], "leetcode"], skill=0.7, seed=1, **settings)
    return before, after


def test_differences_and_flips_against_brute_force(runs, tmp_path):
    out = tmp_path / "out"
    assert main([*map(str, runs), "--output", str(out)]) == 0
    told = json.loads((out / "compare.json").read_text())
    assert list(told["tasks"]) == ["amc", "math500"]
    assert told["only_in_one"] == {"aime2024": "before", "leetcode": "after"}
    rows = markdown_rows((out / "compare.md").read_text())
    for task, own in told["tasks"].items():
        first, second = (means(run, task) for run in runs)
        differences = [second[name] - first[name] for name in first]
        found = own["comparison"]
        assert found["difference"] == pytest.approx(statistics.fmean(differences))
        assert found["standard_error"] == pytest.approx(statistics.stdev(differences) / 15**0.5)
        gained = [name for name in first if first[name] <= 0.5 < second[name]]
        lost = [name for name in first if second[name] <= 0.5 < first[name]]
        assert [flip["problem"] for flip in found["gained"]] == gained
        assert [flip["problem"] for flip in found["lost"]] == lost
        ends = f"{signed(found['low'])} to {signed(found['high'])}"
        row = next(row for row in rows if row[0] == own["title"])
        assert row[2] == ends and row[5:] == [str(len(gained)), str(len(lost)), "15"]


def test_one_problem_has_no_interval(tmp_path, capsys):
    assert main([str(make_run(tmp_path / name, problems=1, skill=9)) for name in ("a", "b")]) == 0
    assert "| – | 100.0 | 100.0 | 0 | 0 | 1 |" in capsys.readouterr().out


def test_problems_without_a_verdict_or_a_response_are_left_out_and_other_versions_are_said(tmp_path):
    def change(row):
        if row["problem"].endswith("003"):
            row.update(score=None, verdict="error", grader_failure=True)

    before = make_run(tmp_path / "a", change=change, failed=[("aime2024/005", 0)])
    after = make_run(tmp_path / "b", seed=1)
    results = json.loads((after / "results.json").read_text())
    results["versions"]["math-verify"] = "0.8.0"
    (after / "results.json").write_text(json.dumps(results))
    assert main([str(before), str(after), "--output", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "compare.md").read_text()
    assert "AIME 2024: 2 problems were not judged in both runs and are left out." in text
    assert "Versions differ: math-verify 0.9.0 and 0.8.0." in text.replace("\\", "")
    paired = json.loads((tmp_path / "out" / "compare.json").read_text())["tasks"]["aime2024"]["comparison"]
    assert paired["problems"] == 10 and paired["left_out"] == 2


@pytest.mark.parametrize(
    ("other", "flag", "message"),
    [
        ({"entry": {"data_sha256": "f" * 64}}, None, "the runs have different problems (data_sha256"),
        ({"entry": {"split": "train"}}, None, "the runs have different split"),
        ({"entry": {"prompt_sha256": "f" * 64}}, "--allow-prompts", "prompts differ (default and default"),
        ({"decoding": "recommended"}, "--allow-decoding", "decoding differs: n 1 and 16, do_sample False and True"),
        ({"entry": {"stop": ["\n"]}}, "--allow-decoding", "decoding differs: stop [] and ['\\n']"),
        ({"tasks": ["amc"]}, None, "the runs have no task in common"),
    ],
)
def test_runs_that_differ_are_refused_unless_that_is_allowed(tmp_path, capsys, other, flag, message):
    before, after = make_run(tmp_path / "a"), make_run(tmp_path / "b", **other)
    out = tmp_path / "out"
    words = [str(before), str(after), "--output", str(out)]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("compare: ") and message in error and error.count("\n") == 1
    assert not out.exists()
    wrong_flags = {"decoding": flag == "--allow-prompts", "prompts": flag == "--allow-decoding"}
    with pytest.raises(RunError):
        compare(load_run(before), load_run(after), **wrong_flags)
    if flag:
        assert flag in error
        assert main([*words, flag]) == 0
        assert escape_markdown(message) in (out / "compare.md").read_text()
