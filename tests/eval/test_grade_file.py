# SPDX-License-Identifier: Apache-2.0
"""``eval.grade --input``: answers that were generated elsewhere, and files that are wrong."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eval import grade
from prime_ext.verifiers import sources

ROWS = [
    {"problem": "a", "gold": "1/2", "response": "So \\boxed{0.5}."},
    {"problem": "a", "gold": "1/2", "response": "So \\boxed{2}."},
    {"problem": "b", "gold": 12, "answer": "12.0", "date": "today"},
    {"problem": "c", "gold": "x", "response": ""},
    {"problem": "d", "gold": "x", "answer": None},
]
OUTCOMES = ["correct", "wrong", "correct", "no_answer", "no_answer"]


def write_lines(path, rows, newline="\n", encoding="utf-8"):
    path.write_bytes("".join(json.dumps(row) + newline for row in rows).encode(encoding))
    return path


def get_graded(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def grade_words(path, *words):
    return grade.main(["--input", str(path), *words])


@pytest.mark.parametrize(
    ("newline", "encoding"), [("\n", "utf-8"), ("\r\n", "utf-8"), ("\n", "utf-8-sig")]
)
def test_verdicts_stand_next_to_the_rows(tmp_path, capsys, newline, encoding):
    path = write_lines(tmp_path / "model-v1.5.jsonl", ROWS, newline, encoding)
    assert grade_words(path, "--data-source", "math500") == 0
    graded = get_graded(tmp_path / "model-v1.5.graded.jsonl")
    assert [row["verdict"] for row in graded] == OUTCOMES
    assert [row["score"] for row in graded] == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert [
        {key: row[key] for key in expected} for row, expected in zip(graded, ROWS, strict=True)
    ] == ROWS
    printed = capsys.readouterr().out
    # Problems count the same: (1/2 + 1 + 0 + 0) / 4.
    line = next(line for line in printed.splitlines() if line.startswith("math500"))
    assert line.split()[1:4] == ["4", "5", "37.5"] and "model-v1.5.graded.jsonl" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model-v1.5.graded.jsonl",
        "model-v1.5.jsonl",
    ]


def test_equal_rows_without_a_problem_are_two_problems(tmp_path, capsys):
    row = {"gold": "4", "answer": "4"}
    assert grade_words(write_lines(tmp_path / "a.jsonl", [row, row]), "--data-source", "math") == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split()[:3] == ["math", "2", "2"]


@pytest.mark.parametrize("suffix", ["json", "csv", "parquet"])
def test_other_formats_give_the_same_verdicts(tmp_path, suffix):
    rows = [{"gold": "1/2", "answer": "0.5"}, {"gold": "3", "answer": "4"}]
    path = tmp_path / f"answers.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        text = "gold,answer\n1/2,0.5\n3,4\n" if suffix == "csv" else json.dumps(rows)
        path.write_text(text)
    assert grade_words(path, "--data-source", "gsm8k") == 0
    graded = get_graded(tmp_path / "answers.graded.jsonl")
    assert [row["score"] for row in graded] == [1.0, 0.0]


def test_every_verifier_reads_bare_answers_and_its_own_source(tmp_path, capsys):
    tests = json.dumps({"test_list": ["assert f(2) == 4"]})
    rows = [
        {"data_source": "math500", "gold": "\\frac{1}{2}", "answer": "0.5"},
        {"data_source": "gsm8k", "gold": "1200", "response": "...\n#### 1,200"},
        {"data_source": "gpqa", "gold": "2", "answer": "B", "n_options": 4},
        {"data_source": "rte", "gold": "yes", "answer": "no", "options": ["yes", "no"]},
        {"data_source": "mbpp", "gold": tests, "answer": "def f(x):\n    return x * x"},
    ]
    assert grade_words(write_lines(tmp_path / "a.jsonl", rows)) == 0
    graded = get_graded(tmp_path / "a.graded.jsonl")
    assert [row["verdict"] for row in graded] == ["correct"] * 3 + ["wrong", "correct"]
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[1:6]] == ["gpqa", "gsm8k", "math500", "mbpp", "rte"]


VERIFIER = """\
from prime_ext import extend
from prime_ext.verifiers.verdict import correct

@extend.verifier("picky", "picky/*")
class Picky:
    async def averify(self, response, gold):
        if response == "bad":
            raise KeyError("no such answer")
        return correct(response, 0.0)
"""


def test_a_verifier_of_the_users_judges_and_may_fail(tmp_path, monkeypatch, capsys):
    (tmp_path / "picky_verifier.py").write_text(VERIFIER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sources, "_registered", list(sources._registered))
    monkeypatch.setitem(sources.TASKS, "picky", None)  # and so gone after the test
    del sources.TASKS["picky"]
    path = write_lines(
        tmp_path / "a.jsonl", [{"gold": "1", "answer": "good"}, {"gold": "1", "answer": "bad"}]
    )
    words = ("--data-source", "picky/mine", "--modules", "picky_verifier")
    assert grade_words(path, *words) == 0
    good, bad = get_graded(tmp_path / "a.graded.jsonl")
    assert good["extracted"] == "good" and bad["grader_failure"] and bad["score"] is None
    assert bad["detail"] == "KeyError: 'no such answer'"
    printed = capsys.readouterr()
    assert (
        printed.out.splitlines()[1].split()[-1] == "1"
        and "'picky' of your modules" not in printed.err
    )
    # The pattern of the verifier is not that of the rows.
    assert grade_words(path, "--data-source", "math500", *words[2:]) == 0
    assert "the verifier 'picky' of your modules judges no row" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        ([], (), "has no rows"),
        ([{"response": "4"}], (), "row 1: no field 'gold'; it has ['response']"),
        ([{"gold": "4"}], (), "row 1: no field 'response' or 'answer'; it has ['gold']"),
        ([{"gold": None, "answer": "4"}], (), "row 1: gold must be a text, got 'None'"),
        ([{"gold": float("nan"), "answer": "4"}], (), "row 1: gold must be a text, got 'nan'"),
        ([{"gold": True, "answer": "4"}], (), "row 1: gold must be a text, got 'True'"),
        ([{"gold": "", "answer": "4"}], (), "row 1: gold is empty"),
        ([{"gold": ["4"], "answer": "4"}], (), "row 1: gold must be a text"),
        ([{"gold": "4", "response": ["4", "5"]}], (), "row 1: response must be a text, got ['4'"),
        ([{"gold": "4", "response": None}], (), "row 1: response must be a text, got None"),
        ([{"gold": "4", "answer": "4"}, ["4"]], (), "row 2: not an object"),
        ([{"gold": "4", "answer": "4"}], ("--data-source", "mine"),
         "no verifier for --data-source"),
        ([{"gold": "4", "answer": "4", "data_source": "mine"}], None,
         "row 1: no verifier for data_source='mine'"),
        ([{"gold": "4", "answer": "4", "data_source": 5}], None, "row 1: data_source must be a te"),
        ([{"gold": "4", "answer": "4", "options": "yes"}], ("--data-source", "rte"),
         "row 1: options must be a list of texts, got 'yes'"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_graded_end_in_one_line(tmp_path, capsys, rows, words, message):
    path = write_lines(tmp_path / "a.jsonl", rows)
    words = () if words is None else words or ("--data-source", "math500")
    assert grade_words(path, *words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and error.startswith("grade: ")
    assert not (tmp_path / "a.graded.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"{'gold': 4}\n", "row 1: not JSON"),
        ("a.jsonl", '{"gold": "é", "answer": "1"}\n'.encode("latin-1"), "is not UTF-8 text"),
        ("a.jsonl", '{"gold": "4", "answer": "1"}\n'.encode("utf-16"), "is not UTF-8 text"),
        ("a.parquet", b"PAR1", "cannot be read"),
        ("a.txt.zip", b"", "has none of the formats"),
        ("a.csv", b"", "is empty; the first line must name the columns"),
        (".", b"", "is a folder, not a file"),
    ],
)
def test_files_that_cannot_be_read_end_in_one_line(tmp_path, capsys, name, content, message):
    if name != ".":
        (tmp_path / name).write_bytes(content)
    assert grade_words(tmp_path / name, "--data-source", "math500") == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_data_source_does_not_go_with_a_run(tmp_path, capsys):
    assert grade.main(["--run", str(tmp_path), "--data-source", "math500"]) == 2
    assert "--data-source goes with --input" in capsys.readouterr().err
