# SPDX-License-Identifier: Apache-2.0
"""Labelled responses: formats, groups, the validation split, and one line about bad rows."""

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tiny_prm import response_rows, step_rows, write_jsonl

from prime_ext.offline_prm.data import BadData, is_held_out, read_data, step_labels

ROWS = response_rows(3, seed=1)


def test_parquet_and_json_lines_hold_the_same_data(tmp_path):
    files = [write_jsonl(tmp_path / "d.jsonl", ROWS), tmp_path / "d.parquet"]
    parquet.write_table(pa.Table.from_pylist(ROWS), files[1])
    data, other = (read_data([file], "ce", False) for file in files)
    assert data.digest() == other.digest()
    assert [e.text for e in data.examples[0]] == ROWS[0]["completions"] and data.datasets == ["even"] * 3
    assert [e.label for e in data.examples[0]] == [float(value) for value in ROWS[0]["correctness"]]


def test_rows_of_one_prompt_are_one_group_wherever_they_stand_and_however_the_prompt_is_written(tmp_path):
    rows = [
        {"prompt": "a", "completions": ["1"], "correctness": [1]},
        {"prompt": "b", "completions": ["2"], "correctness": [0]},
        {"prompt": [{"role": "user", "content": "a"}], "completions": ["3", "4"], "correctness": [0, 0.5]},
    ]
    data = read_data([write_jsonl(tmp_path / "d.jsonl", rows)], "ce", False)
    assert data.prompts == ["a", "b"]
    assert [[e.text for e in group] for group in data.examples] == [["1", "3", "4"], ["2"]]


def test_published_rows_hold_one_conversation_each(tmp_path):
    """As in PRIME-RL/EurusPRM-Stage1-Data: the messages in ``response``, and 1 or 0 in ``label``."""
    question = {"role": "user", "content": "a"}
    rows = [
        {"response": [question, {"role": "assistant", "content": text}], "label": label, "dataset": "MATH"}
        for text, label in (("1", 1), ("2", 0))
    ]
    data = read_data([write_jsonl(tmp_path / "d.jsonl", rows)], "ce", False)
    assert data.prompts == [[question]] and data.datasets == ["MATH"]
    assert [(e.text, e.label) for e in data.examples[0]] == [("1", 1.0), ("2", 0.0)]
    broken = write_jsonl(tmp_path / "broken.jsonl", [{"response": [question, question], "label": 1}])
    with pytest.raises(BadData, match="row 1: response must be messages that end with the assistant's"):
        read_data([broken], "ce", False)


def test_a_prompt_keeps_its_side_of_the_split_when_other_rows_come_and_go():
    held = [is_held_out(f"p{number}", 0.25, 0) for number in range(4000)]
    assert 0.22 < sum(held) / 4000 < 0.28
    assert held[:10] == [is_held_out(f"p{number}", 0.25, 0) for number in range(10)]
    assert held != [is_held_out(f"p{number}", 0.25, 1) for number in range(4000)]
    assert not any(is_held_out(f"p{number}", 0.0, 0) for number in range(100))


@pytest.mark.parametrize(
    ("row", "after_error", "expected"),
    [
        ({"label": -1}, "wrong", (1.0, 1.0, 1.0)),
        ({"label": 1}, "wrong", (1.0, 0.0, 0.0)),
        ({"label": 1}, "ignore", (1.0, 0.0, None)),
        ({"label": 1}, "keep", (1.0, 0.0, None)),
        ({"step_labels": [1, 0, 1]}, "wrong", (1.0, 0.0, 0.0)),
        ({"step_labels": [1, 0, 1]}, "keep", (1.0, 0.0, 1.0)),
        ({"step_labels": [1, None, 0.5]}, "wrong", (1.0, None, 0.5)),
        ({"labels": [True, True, False]}, "ignore", (1.0, 1.0, 0.0)),
    ],
)
def test_labels_of_steps(row, after_error, expected):
    assert step_labels(row, 3, "row 1", after_error) == expected


def test_steps_become_one_response(tmp_path):
    rows = [*step_rows(1), {"prompt": "p", "completions": ["x", "y"], "labels": [True, False]}]
    data = read_data([write_jsonl(tmp_path / "s.jsonl", rows)], "step_ce", False, by_step=True)
    example = data.examples[1][0]
    assert example.text == "Step 1: x\n\nStep 2: y" and example.step_labels == (1.0, 0.0) and example.label is None


GOOD = {"prompt": "p", "completions": ["a", "b"], "correctness": [1, 0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": None}, "row 2: no column 'prompt'"),
        ({"prompt": 3}, "row 2: prompt must be a text or a list of messages"),
        ({"prompt": [{"role": "user"}]}, "row 2: prompt must be a text or a list of messages"),
        ({"completions": []}, "row 2: completions must be a list that is not empty"),
        ({"completions": ["a", " "]}, "row 2: completion 2 is empty"),
        ({"completions": ["a", 3]}, "row 2: completion 2 must be a text, got 3"),
        ({"completions": ["a"]}, "row 2: 1 completions and 2 values of correctness"),
        ({"correctness": [1, 2]}, "row 2: correctness 2 must be in [0, 1], got 2"),
        ({"correctness": [float("nan"), 0]}, "row 2: correctness 1 must be in [0, 1], got nan"),
        ({"correctness": [None, 0]}, "row 2: correctness 1 must be in [0, 1], got None"),
        ({"correctness": [0.5, 0]}, "row 2: correctness 1 must be 0 or 1 for the loss dpo, got 0.5"),
    ],
)
def test_bad_responses_are_one_line_with_the_row(tmp_path, change, message):
    path = write_jsonl(tmp_path / "d.jsonl", [GOOD, {**GOOD, **change}])
    with pytest.raises(BadData) as error:
        read_data([path], "dpo", True)
    assert message in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem": "p", "steps": ["a", "b"]}, "row 1: no column 'step_labels'"),
        (
            {"problem": "p", "steps": ["a", "b"], "label": 2},
            "label must be -1 or the index of the first wrong of 2 steps",
        ),
        ({"problem": "p", "steps": ["a", "b"], "step_labels": [1]}, "row 1: 2 steps and 1 step_labels"),
        ({"problem": "p", "steps": ["a", ""], "label": 0}, "row 1: step 2 is empty"),
        ({"problem": "p", "steps": ["a"], "step_labels": [None]}, "row 1: no step has a label"),
        ({"steps": ["a"], "label": 0}, "row 1: no column 'prompt'"),
    ],
)
def test_bad_steps_are_one_line_with_the_row(tmp_path, row, message):
    with pytest.raises(BadData) as error:
        read_data([write_jsonl(tmp_path / "s.jsonl", [row])], "step_ce", False, by_step=True)
    assert message in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "half.jsonl").write_text('{"prompt": ')
    messages = {"none.jsonl": "does not exist", "empty.jsonl": "has no rows", "half.jsonl": "row 1: not JSON"}
    for name, message in messages.items():
        with pytest.raises(BadData, match=message):
            read_data([tmp_path / name], "ce", False)
