# SPDX-License-Identifier: Apache-2.0
"""Reports and comparisons agree with ``results.json``, whatever a model wrote; one-line errors."""

import json
import re
import statistics

import pytest
from eval_runs import make_run

from eval.compare import format_difference
from eval.compare import main as compare_main
from eval.formats import format_interval, format_percent, format_score
from eval.published import read_references
from eval.report import main, write_report
from eval.results import load_run
from prime_ext.tasks.task_file import list_task_names, load_task
from prime_ext.utils.report_page import escape_markdown

# ---- reports ----


def test_a_partial_score_solves_no_problem(tmp_path):
    def score_partly(row):
        row.update(score=0.5, verdict="wrong")

    run = make_run(tmp_path / "run", n=1, problems=7, change=score_partly)
    assert "Problems: 7 never solved, 0 sometimes, 0 always." in write_report(run).read_text()


HOSTILE = (
    "</pre></details><script>alert(1)</script><img src=x"
    " onerror=alert(2)>\x00\x1b[31m\u202egnp\ud800``` | [x](y)"
)


def hostile(row):
    """Fill a row of a task with what a page must survive; each response is of its own kind."""
    number = int(row["problem"][-3:])
    row["response"] = HOSTILE + row["response"]
    row["prompt"] = [{"role": "user", "content": HOSTILE}]
    row["groups"] = {"contest": HOSTILE[:60]}
    if number == 1:
        row["response"] = "<b>" * (5 * 2**20 // 3)
    if number == 2:
        row.update(
            score=None, verdict="error", grader_failure=True, detail=HOSTILE, extracted=HOSTILE
        )
    row["gold"] = HOSTILE * 100


def markdown_rows(text):
    """Return cells of the tables, without escapes."""
    lines = [line.replace("\\", "") for line in text.splitlines() if line[:2] == "| "]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_score_of_the_results_is_in_the_report(tmp_path):
    failed = [("math500/003", 5)]
    settings = {"decoding": "recommended", "ks": (4, 16), "failed": failed, "skill": 0.4}
    run = make_run(tmp_path / "run", ["aime2024", "math500"], **settings)
    results = json.loads((run / "results.json").read_text())
    markdown = write_report(run).read_text()
    rows = markdown_rows(markdown)
    for task in results["tasks"].values():
        summary = task["summary"]
        named = [
            [name, *_told(estimate), str(estimate["left_out"])]
            for name, estimate in summary["scores"].items()
        ]
        parts = [item for parts in summary["groups"].values() for item in parts.items()]
        named += [
            [value, format_score(estimate), format_interval(estimate), str(estimate["problems"])]
            for value, estimate in parts
        ]
        named += [
            ["response tokens per second", "123.4"],
            ["median length", f"{summary['tokens']['median']:,}"],
        ]
        assert [row for row in named if row not in rows] == []
    # The summary has the best published single response, because avg@16 has not been published.
    summary = results["tasks"]["math500"]["summary"]
    expected = [
        *_told(summary["scores"]["avg@16"])[:2],
        "79.8 (Qwen2.5-Math-7B-Instruct) accuracy",
        "12 x 16",
    ]
    expected += [
        f"{summary['tokens']['mean']:,.1f}",
        format_percent(summary["truncated"]),
        format_percent(summary["no_answer"]),
    ]
    assert ["MATH-500", *expected, str(summary["grader_failures"]), "1"] in rows
    for setting in ("| model.revision | abc123 |", "| versions.mpmath | 1.3.0 |", "| seed | 0 |"):
        assert setting in markdown
    assert results["tasks"]["aime2024"]["prompt_sha256"] in markdown
    means = [statistics.fmean(scores) for scores in load_run(run).tasks["aime2024"].scores]
    counts = means.count(0), sum(0 < mean < 1 for mean in means), means.count(1)
    assert "Problems: {} never solved, {} sometimes, {} always.".format(*counts) in markdown


def _told(estimate):
    """Return score, interval and number of problems."""
    value, error, low, high = (
        f"{100 * estimate[key]:.1f}" for key in ("value", "standard_error", "low", "high")
    )
    return [f"{value} ± {error}", f"{low} to {high}", str(estimate["problems"])]


def test_hostile_responses_leave_a_valid_and_small_page(tmp_path):
    path = write_report(
        make_run(tmp_path / "run", change=hostile, model="<script>alert(3)</script>\x00")
    )
    assert path.stat().st_size < 100_000
    text = path.read_text(encoding="utf-8")
    assert (
        "characters left out" in text and "⟨U+202E⟩" in text and "⟨U+D800⟩" in text and "␀␛" in text
    )
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", text)
    outside = re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", text)
    assert "<script" not in outside and "<img" not in outside


def test_paper_tables_have_published_columns_and_averages_with_errors(tmp_path, capsys):
    tasks = ["aime2024", "amc", "math500", "minerva_math", "olympiadbench"]
    whole = make_run(tmp_path / "whole", tasks, problems=30)
    partial = make_run(tmp_path / "part", tasks[:2], decoding="recommended")
    assert main([str(whole), str(partial)]) == 0
    assert capsys.readouterr().out.split() == [str(run / "report.md") for run in (whole, partial)]
    assert main([str(whole), str(whole)]) == main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert (
        "two runs have a folder of the same name" in error
        and "has no results.json: give the --output" in error
    )
    assert main([str(whole), str(partial), "--table", "prime"]) == 0
    text = capsys.readouterr().out
    head, _, *rows, average = markdown_rows(text)
    assert head[1:3] == ["whole", "part"] and head[-1] == "Eurus-2-7B-PRIME"
    scores = [
        entry["summary"]["scores"]["avg@1"] for entry in load_run(whole).results["tasks"].values()
    ]
    error = sum(estimate["standard_error"] ** 2 for estimate in scores) ** 0.5 / 5
    assert (
        average[1]
        == f"{100 * statistics.fmean(score['value'] for score in scores):.1f} ± {100 * error:.1f}"
    )
    # The published average of the five, from PRIME's README; the run with two tasks has none.
    assert average[2] == "–" and average[-1] == "48.9"
    assert rows[0][3:] == [
        f"{value:.1f}" for value in read_references("aime2024")[0]["values"].values()
    ]
    assert (
        "n 16, published 1." in text and "whole: AMC 2022-2023: 30 problems, published 83." in text
    )
    sets = ["awpnli", "newsnli", "redditnli", "rte_quant", "stresstest", "qqa"]
    run = make_run(tmp_path / "run", sets, decoding="greedy")
    assert main([str(run), "--table", "pspo"]) == 0
    printed = capsys.readouterr().out
    micro = load_run(run).results["tasks"]["qqa"]["choice"]["micro_f1"]
    row = next(row for row in markdown_rows(printed) if row[0] == "QQA")
    assert row[1].startswith(f"{100 * micro:.1f} ± ") and row[-1] == "54.7"
    assert "min_new_tokens 0, published 10" in printed.replace("\\", "")


def test_published_numbers_are_of_metrics_that_their_tasks_have():
    for name in list_task_names():
        for reference in read_references(name):
            assert reference["metric"] in load_task(name).metrics
            assert reference["values"] and all(
                0 <= value <= 100 for value in reference["values"].values()
            )


RESULTS = "results.json"
SAMPLES = "aime2024/samples.jsonl"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (RESULTS, lambda text: None, "the run is not finished; start it again"),
        ("timing.json", lambda text: "{", "timing.json is broken or half-written"),
        (RESULTS, lambda text: text.replace('"format": 1', '"format": 2'), "has format 2, not 1"),
        (RESULTS, lambda text: text.replace('"summary"', '"sum"'),
         "is not what eval.run writes (KeyError", ),
        (SAMPLES, lambda text: text.partition("\n")[2],
         "has 11 lines for 11 responses, results.json says"),
        (SAMPLES, lambda text: text.replace("1.0", "0.0"),
         "has a mean score of 0.0, results.json says"),
        (SAMPLES, lambda text: text.replace('"score": 1.0', '"score": 7'),
         "scores must be in [0, 1]"),
    ],
)  # fmt: skip
def test_a_damaged_run_is_one_line_and_nothing_is_overwritten(
    tmp_path, capsys, name, change, message
):
    run = make_run(tmp_path / "run")
    (run / "report.md").write_text("mine")
    text = change((run / name).read_text())
    if text is None:
        (run / name).unlink()
    else:
        (run / name).write_text(text)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main([str(run)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("report: ") and error.count("\n") == 1
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


# ---- comparisons ----


def test_differences_and_flips_against_brute_force(tmp_path):
    tasks = ["aime2024", "amc", "math500"]
    out = tmp_path / "out"
    settings = {"decoding": "recommended", "n": 4, "problems": 15}
    before = make_run(tmp_path / "before", tasks, skill=0.3, **settings)
    after = make_run(tmp_path / "after", [*tasks[1:], "leetcode"], skill=0.7, seed=1, **settings)
    assert compare_main([str(before), str(after), "--output", str(out)]) == 0
    compared = json.loads((out / "compare.json").read_text())
    assert list(compared["tasks"]) == ["amc", "math500"]
    assert compared["only_in_one"] == {"aime2024": "before", "leetcode": "after"}
    rows = markdown_rows((out / "compare.md").read_text())
    for task, task_result in compared["tasks"].items():
        first, second = (
            {
                name: statistics.fmean(row["score"] for row in rows)
                for name, rows in problems.items()
            }
            for problems in (load_run(run).tasks[task].problems for run in (before, after))
        )
        differences = [second[name] - first[name] for name in first]
        comparison = task_result["comparison"]
        assert comparison["difference"] == pytest.approx(statistics.fmean(differences))
        assert comparison["standard_error"] == pytest.approx(
            statistics.stdev(differences) / 15**0.5
        )
        gained = [name for name in first if first[name] <= 0.5 < second[name]]
        lost = [name for name in first if second[name] <= 0.5 < first[name]]
        assert [flip["problem"] for flip in comparison["gained"]] == gained
        assert [flip["problem"] for flip in comparison["lost"]] == lost
        ends = f"{format_difference(comparison['low'])} to {format_difference(comparison['high'])}"
        row = next(row for row in rows if row[0] == task_result["title"])
        assert row[2] == ends and row[5:] == [str(len(gained)), str(len(lost)), "15"]


def test_unjudged_problems_and_other_versions_are_said(tmp_path):
    def change(row):
        if row["problem"].endswith("003"):
            row.update(score=None, verdict="error", grader_failure=True)

    before = make_run(tmp_path / "a", change=change, failed=[("aime2024/005", 0)])
    after = make_run(tmp_path / "b", seed=1)
    results = json.loads((after / "results.json").read_text())
    results["versions"]["mpmath"] = "1.2.0"
    (after / "results.json").write_text(json.dumps(results))
    assert compare_main([str(before), str(after), "--output", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "compare.md").read_text()
    assert "AIME 2024: 2 problems were not judged in both runs and are left out." in text
    assert "Versions differ: mpmath 1.3.0 and 1.2.0." in text.replace("\\", "")
    paired = json.loads((tmp_path / "out" / "compare.json").read_text())["tasks"]["aime2024"][
        "comparison"
    ]
    assert paired["problems"] == 10 and paired["left_out"] == 2


@pytest.mark.parametrize(
    ("other", "flag", "message"),
    [
        ({"entry": {"data_sha256": "f" * 64}}, None,
         "the runs have different problems (data_sha256", ),
        ({"entry": {"split": "train"}}, None, "the runs have different split"),
        ({"entry": {"prompt_sha256": "f" * 64}}, "--allow-prompts",
         "prompts differ (default and default", ),
        ({"decoding": "recommended"}, "--allow-decoding",
         "decoding differs: n 1 and 16, do_sample False and True"),
        ({"entry": {"stop": ["\n"]}}, "--allow-decoding", "decoding differs: stop [] and ['\\n']"),
        ({"tasks": ["amc"]}, None, "the runs have no task in common"),
    ],
)  # fmt: skip
def test_runs_that_differ_are_refused_unless_that_is_allowed(
    tmp_path, capsys, other, flag, message
):
    before = make_run(tmp_path / "a")
    after = make_run(tmp_path / "b", **other)
    out = tmp_path / "out"
    words = [str(before), str(after), "--output", str(out)]
    assert compare_main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("compare: ") and message in error and error.count("\n") == 1
    assert not out.exists()
    others = {"--allow-prompts", "--allow-decoding"} - {flag}
    assert compare_main([*words, *others]) == 2
    if flag:
        assert flag in error
        assert compare_main([*words, flag]) == 0
        assert escape_markdown(message) in (out / "compare.md").read_text()
