# SPDX-License-Identifier: Apache-2.0
"""The grading command: right verdicts in order, resumable, and one clear line about bad input."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from eval.grade import PartialOutput, main, summarize

ROOT = Path(__file__).resolve().parents[2]

MATH = [
    {"gold": "1/2", "response": r"so \boxed{0.5}", "id": 7},
    {"gold": "3", "response": r"so \boxed{4}"},
    {"gold": "3", "response": "three"},
    {"gold": ["1", "x^2 + x"], "pred": "x(x+1)"},
    {"gold": "", "pred": "1"},
]
CODE = [
    {"response": "```python\nprint(int(input()) * 2)\n```", "inputs": ["2", "3"], "outputs": ["4", "6"]},
    {"program": "print(4)", "test_cases": json.dumps({"inputs": ["2", "3"], "outputs": ["4", "6"]})},
    {"program": "def double(x):\n    return x * 2", "inputs": ["2"], "outputs": ["4"], "fn_name": "double"},
    {"task_id": "T/1", "completion": "    return 2 * x\n"},
    {"task_id": "T/1", "completion": "    while True: pass\n"},
]
PROBLEM = {
    "task_id": "T/1",
    "prompt": "def twice(x):\n",
    "entry_point": "twice",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n    assert candidate(0) == 0\n",
}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def grade(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["grade", *map(str, arguments)])
    return main()


def test_math_rows_come_back_in_order_with_their_verdicts(tmp_path, monkeypatch, capsys):
    output = tmp_path / "verdicts.jsonl"
    source = write(tmp_path / "pairs.jsonl", MATH)
    assert grade(monkeypatch, "--task", "math", "--input", source, "--output", output) == 0
    rows = read(output)
    assert [row["verdict"] for row in rows] == ["correct", "wrong", "no_answer", "correct", "error"]
    assert [row["score"] for row in rows] == [1.0, 0.0, 0.0, 1.0, None]
    assert rows[4]["grader_failure"] and not rows[0]["grader_failure"]
    assert rows[0]["id"] == 7 and rows[0]["extracted"] == "0.5" and rows[0]["seconds"] >= 0
    summary = json.loads((tmp_path / "verdicts.jsonl.summary.json").read_text())
    assert summary["mean_score"] == 0.5 and summary["judged"] == 4 and summary["grader_failures"] == 1
    printed = capsys.readouterr().out
    assert "50.00 %" in printed and "1 rows could not be judged" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "pairs.jsonl",
        "verdicts.jsonl",
        "verdicts.jsonl.summary.json",
    ]


@pytest.mark.slow
def test_code_rows_in_every_format(tmp_path, monkeypatch):
    output = tmp_path / "verdicts.jsonl"
    problems = tmp_path / "problems.jsonl.gz"
    problems.write_bytes(gzip.compress((json.dumps(PROBLEM) + "\n").encode()))
    source = write(tmp_path / "samples.jsonl", CODE)
    arguments = ("--task", "code", "--input", source, "--output", output, "--problems", problems)
    assert grade(monkeypatch, *arguments) == 0
    rows = read(output)
    assert [row["verdict"] for row in rows] == ["correct", "wrong", "correct", "correct", "timeout"]
    assert grade(monkeypatch, *arguments, "--overwrite", "--reward", "fraction") == 0
    assert [row["score"] for row in read(output)] == [1.0, 0.5, 1.0, 1.0, 0.0]


def test_multiple_choice(tmp_path, monkeypatch):
    output = tmp_path / "verdicts.jsonl"
    rows = [
        {"gold": "neutral", "response": "the answer is option 2. #### 2", "options": ["entailment", "neutral"]},
        {"gold": 1, "response": "#### 2", "n_options": 2},
    ]
    source = write(tmp_path / "answers.jsonl", rows)
    assert grade(monkeypatch, "--task", "choice", "--input", source, "--output", output) == 0
    assert [row["verdict"] for row in read(output)] == ["correct", "wrong"]


@pytest.fixture
def interrupted(tmp_path):
    """A run that was killed after two rows, in the middle of writing the third."""
    output = tmp_path / "verdicts.jsonl"
    source = write(tmp_path / "pairs.jsonl", MATH)
    partial = PartialOutput(output, {"task": "math", "extraction": "boxed", "reward": "all"})
    assert partial.resume(MATH) == []
    # Marked, so that one sees which rows were not graded again.
    done = [
        {**row, **verdict} for row, verdict in zip(MATH[:2], [{"score": 0.25, "verdict": "wrong"}] * 2, strict=True)
    ]
    rest = {"seconds": 0.0, "extracted": None, "detail": "", "grader_failure": False}
    lines = [json.dumps({**row, **rest}) for row in done]
    partial.path.write_text("\n".join(lines) + '\n{"gold": "3", "resp')
    return source, output, partial


def test_an_interrupted_run_goes_on_where_it_was(interrupted, monkeypatch, capsys):
    source, output, partial = interrupted
    assert grade(monkeypatch, "--task", "math", "--input", source, "--output", output) == 0
    assert [row["score"] for row in read(output)] == [0.25, 0.25, 0.0, 1.0, None]
    assert "going on after 2 rows" in capsys.readouterr().out
    assert not partial.path.exists()


def test_an_interrupted_run_is_not_mixed_with_another(interrupted, monkeypatch, capsys):
    source, output, partial = interrupted
    arguments = ("--task", "math", "--input", source, "--output", output)
    assert grade(monkeypatch, *arguments, "--extraction", "gsm8k") == 2
    assert "was graded with" in capsys.readouterr().err
    write(source, [{**MATH[0], "gold": "2"}, *MATH[1:]])
    assert grade(monkeypatch, *arguments) == 2
    assert f"row 1 of the input is not what an unfinished run graded; delete {partial.path}" in capsys.readouterr().err
    write(source, MATH[:1])
    assert grade(monkeypatch, *arguments) == 2
    assert "graded 2 rows, the input has 1" in capsys.readouterr().err
    assert partial.path.exists() and not output.exists()


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("math", '{"pred": "1"}', "row 1: no field 'gold'; it has ['pred']"),
        ("math", '{"gold": "1"}', "row 1: no field 'pred' or 'response'; it has ['gold']"),
        ("math", '{"gold": "1", "pred": "1"}\n{"gold"', "line 2 is not JSON"),
        ("math", "[1]", "line 1 is a list, not an object"),
        ("math", "", "has no rows"),
        ("code", '{"program": "x"}', "row 1: no tests; give inputs and outputs"),
        ("code", '{"inputs": [], "outputs": []}', "row 1: no response, program or completion"),
        ("code", '{"program": "x", "test_cases": "{"}', "row 1: test_cases is not JSON"),
        ("choice", '{"gold": 1, "pred": "1"}', "row 1: no field 'response'"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_graded(tmp_path, monkeypatch, capsys, task, text, message):
    source, output = tmp_path / "rows.jsonl", tmp_path / "verdicts.jsonl"
    source.write_text(text)
    assert grade(monkeypatch, "--task", task, "--input", source, "--output", output) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_an_existing_output_is_not_overwritten_unasked(tmp_path, monkeypatch, capsys):
    source, output = write(tmp_path / "rows.jsonl", MATH[:1]), write(tmp_path / "verdicts.jsonl", [{"old": 1}])
    assert grade(monkeypatch, "--task", "math", "--input", source, "--output", output) == 2
    assert "exists already; use --overwrite" in capsys.readouterr().err
    assert read(output) == [{"old": 1}]


def test_rows_that_could_not_be_judged_are_in_no_mean():
    rows = [{"score": score, "verdict": "wrong", "seconds": 0.1} for score in (1.0, 0.0, None)]
    summary = summarize(rows)
    assert summary["mean_score"] == 0.5 and summary["standard_error"] == pytest.approx(0.5)
    assert summarize([{"score": None, "verdict": "error", "seconds": 0.1}])["mean_score"] is None


def test_the_command_runs_from_the_repository():
    result = subprocess.run([sys.executable, "-m", "eval.grade", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0 and "--problems" in result.stdout
