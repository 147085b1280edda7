# SPDX-License-Identifier: Apache-2.0
"""The grading command: right verdicts in order, resumable, and one clear line about bad input."""

import gzip
import json

import pytest
from benchmark_rows import SAMPLES

from eval.grade import job, main
from prime_ext.utils.rows import read_source

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


def grade(*arguments):
    return main(list(map(str, arguments)))


def test_math_rows_come_back_in_order_with_their_verdicts(tmp_path, capsys):
    output = tmp_path / "verdicts.jsonl"
    source = write(tmp_path / "pairs.jsonl", MATH)
    assert grade("--task", "math", "--input", source, "--output", output) == 0
    rows = read(output)
    assert [row["verdict"] for row in rows] == ["correct", "wrong", "no_answer", "correct", "error"]
    assert [row["score"] for row in rows] == [1.0, 0.0, 0.0, 1.0, None]
    assert rows[4]["grader_failure"] and not rows[0]["grader_failure"]
    assert rows[0]["id"] == 7 and rows[0]["extracted"] == "0.5" and rows[0]["seconds"] >= 0
    summary = json.loads((tmp_path / "verdicts.jsonl.summary.json").read_text())
    assert summary["mean_score"] == 0.5 and summary["judged"] == 4 and summary["grader_failures"] == 1
    printed = capsys.readouterr().out
    assert "50.00 %" in printed and "1 rows could not be judged" in printed
    assert len(list(tmp_path.iterdir())) == 3
    assert grade("--task", "math", "--input", source, "--output", output) == 2
    assert "exists already; use --overwrite" in capsys.readouterr().err and read(output) == rows


@pytest.mark.slow
def test_code_rows_in_every_format(tmp_path):
    output = tmp_path / "verdicts.jsonl"
    problems = tmp_path / "problems.jsonl.gz"
    problems.write_bytes(gzip.compress((json.dumps(PROBLEM) + "\n").encode()))
    source = write(tmp_path / "samples.jsonl", CODE)
    arguments = ("--task", "code", "--input", source, "--output", output, "--problems", problems)
    assert grade(*arguments) == 0
    assert [row["verdict"] for row in read(output)] == ["correct", "wrong", "correct", "correct", "timeout"]
    assert grade(*arguments, "--overwrite", "--reward", "fraction") == 0
    assert [row["score"] for row in read(output)] == [1.0, 0.5, 1.0, 1.0, 0.0]


def test_multiple_choice(tmp_path):
    output = tmp_path / "verdicts.jsonl"
    rows = [
        {"gold": "neutral", "response": "the answer is option 2. #### 2", "options": ["entailment", "neutral"]},
        {"gold": 1, "response": "#### 2", "n_options": 2},
    ]
    assert grade("--task", "choice", "--input", write(tmp_path / "in.jsonl", rows), "--output", output) == 0
    assert [row["verdict"] for row in read(output)] == ["correct", "wrong"]


def test_an_interrupted_run_goes_on_where_it_was_with_the_same_rows_and_settings_only(tmp_path, capsys):
    output = tmp_path / "verdicts.jsonl"
    arguments = ("--task", "math", "--input", write(tmp_path / "pairs.jsonl", MATH), "--output", output)
    partial = output.with_name(".verdicts.jsonl.partial")
    # Killed after two rows, in the middle of writing the third. Marked, so that one sees which were not graded again.
    verdict = {"verdict": "wrong", "score": 0.25, "extracted": None, "seconds": 0.0, "detail": ""}
    lines = [
        {"key": job("math", row, "", {}, "boxed", "all")[0], "verdict": {**verdict, "grader_failure": False}}
        for row in MATH[:2]
    ]
    killed = "".join(json.dumps(line) + "\n" for line in lines) + '{"key": "3", "verd'
    partial.write_text(killed)
    assert grade(*arguments) == 0
    assert [row["score"] for row in read(output)] == [0.25, 0.25, 0.0, 1.0, None]
    assert "going on after 2 rows" in capsys.readouterr().out and not partial.exists()
    # Other settings, and a row that was changed meanwhile, are graded anew.
    partial.write_text(killed)
    assert grade(*arguments, "--overwrite", "--extraction", "gsm8k") == 0
    assert 0.25 not in [row["score"] for row in read(output)]
    partial.write_text(killed)
    write(tmp_path / "pairs.jsonl", [{**MATH[0], "gold": "2"}, *MATH[1:]])
    assert grade(*arguments, "--overwrite") == 0
    assert [row["score"] for row in read(output)][:2] == [0.0, 0.25]


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("math", '{"pred": "1"}', "row 1: no field 'gold'; it has ['pred']"),
        ("math", '{"gold": "1", "pred": "1"}\n{"gold"', "row 2: not JSON"),
        ("math", "", "has no rows"),
        ("code", '{"program": "x"}', "row 1: no tests; give inputs and outputs"),
        ("code", '{"inputs": [], "outputs": []}', "row 1: no field 'response' or 'program' or 'completion'"),
        ("code", '{"program": "x", "test_cases": "{"}', "row 1: test_cases is not JSON"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_graded(tmp_path, capsys, task, text, message):
    source, output = tmp_path / "rows.jsonl", tmp_path / "verdicts.jsonl"
    source.write_text(text)
    assert grade("--task", task, "--input", source, "--output", output) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_stored_programs_are_graded_in_the_form_of_each_benchmark(tmp_path):
    human = next(row for _, row in read_source(SAMPLES / "humaneval/HumanEval.jsonl.gz"))
    live = read(SAMPLES / "livecodebench/test.jsonl")[0]
    rows = [
        {**human, "completion": human["canonical_solution"]},
        {**live, "program": "print(sum(map(int, input().split())))"},
    ]
    output = tmp_path / "verdicts.jsonl"
    assert grade("--task", "code", "--input", write(tmp_path / "rows.jsonl", rows), "--output", output) == 0
    found = read(output)
    assert [one["score"] for one in found] == [1.0, 1.0]
