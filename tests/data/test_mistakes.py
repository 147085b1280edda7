# SPDX-License-Identifier: Apache-2.0
"""What cannot work is one line that says why, exit code 2, and no file."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).parent / "fixtures"
GOOD = '{"problem": "What is 1+1?", "answer": "2", "source": "a", "id": 1}\n'
MATH = f"pipeline {ROOT}/data_preprocessing/settings/gsm8k_math.yaml --workers 1"
NUMINA = f"{MATH} stages.decontaminate=null --input numina=in.jsonl"
HERE = f"data_dir={FIXTURES}"
NEWS = "numeric_reasoning --input newsnli=in.csv"
ROWS = "premise,hypothesis,label\n"


@pytest.mark.parametrize(
    ("words", "content", "reason"),
    [
        (f"{MATH} --input poems=x.jsonl", "", "--input names poems, which must be one of gsm8k"),
        (f"{MATH} data_dir=nowhere", "", "nowhere/gsm8k/train.jsonl does not exist"),
        (f"{MATH} {HERE} stages.decontaminate.tasks=[math500]", "", "decontaminate.tasks: math500: "),
        (f"{MATH} {HERE} --workers 0", "", "--workers must be at least 1"),
        (NUMINA, "{broken\n", "nothing can be used: "),
        (NUMINA, '{"problem": "Prove it.", "answer": "1", "source": "a"}\n', "the stages removed all rows"),
        (f"{NUMINA} --strict", GOOD + "{broken\n", "in.jsonl row 2: not JSON"),
        (NEWS, "premise,label\na,neutral\n", "no column hypothesis or statement2 or sentence2; it has premise, label"),
        (NEWS, ROWS + "a,b,-\n", "label '-' is none of entailment, neutral"),
        (f"{NEWS} --splits official", ROWS + "a,b,neutral\n", "newsnli has no official split"),
        (f"{NEWS} --tasks qqa", "", "--input names newsnli, which is not among --tasks qqa"),
        (f"{NEWS} --tasks newsnil", "", "no task 'newsnil'; did you mean newsnli"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(tmp_path, monkeypatch, capsys, words, content, reason):
    monkeypatch.chdir(tmp_path)
    for name in ("in.jsonl", "in.csv"):
        (tmp_path / name).write_text(content)
    program, *words = words.split()
    assert importlib.import_module(f"data_preprocessing.{program}").main([*words, "--output-dir", "out"]) == 2
    *before, error = capsys.readouterr().err.splitlines()
    assert error.startswith(f"{program}: ") and reason in error
    # Rows that cannot be used are lines of their own.
    assert all(line.startswith("in.csv row ") for line in before)
    assert not list(Path("out").glob("*"))


def test_settings_that_are_no_yaml_or_name_a_key_twice_are_one_line(tmp_path, capsys):
    pipeline = importlib.import_module("data_preprocessing.pipeline")
    for content in ("a: [", "seed: 1\nseed: 2\n", "- 1\n", ""):
        (tmp_path / "x.yaml").write_text(content)
        assert pipeline.main([str(tmp_path / "x.yaml"), "--output-dir", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err.strip()
        assert error.startswith("pipeline: x.yaml") and "\n" not in error
