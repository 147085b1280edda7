# SPDX-License-Identifier: Apache-2.0
"""Labeled steps of public formats in one schema, on splits that do not leak."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.step_rm.convert import main
from prime_ext.step_rm.question_split import name_group, pick_split
from prime_ext.step_rm.records import METADATA, read_steps
from prime_ext.utils.rows import SourceError

# Lines of files that are right, and lines that are not.
GOOD = {
    "pspo": (
        r"""
{"sentence": "[1] . It says 3.\n", "label": "1"}
{"sentence": "[1] . It says 3.\n </s><s>[2] . So it is 4.\n", "label": "0"}
{"sentence": "[2] . So it is 4.\n </s><s>[3] . Option 1.", "label": "-1"}
{"sentence": "1. Other response. </s><s> 2. Its second step.", "label": "1"}
{"sentence": "7. Middle of a third. </s><s>8. Goes on.", "label": "-1"}"""
    ),
    "prm800k": (
        """{"question": {"problem": "What is 2 + 3?"}, "label": {"steps": [\
{"completions": [{"text": "Add them.", "rating": 1}], "human_completion": null, "chosen_completion": 0}, \
{"completions": [{"text": "It is 6.", "rating": -1, "flagged": false}, {"text": "Hmm.", "rating": 0}, \
{"text": "???", "rating": -1, "flagged": true}, {"text": "Unrated.", "rating": null}], \
"human_completion": {"text": "It is 5.", "rating": null}, "chosen_completion": null}, \
{"completions": [{"text": "Done.", "rating": 1}], "human_completion": null, "chosen_completion": null}, \
{"completions": null, "human_completion": null, "chosen_completion": null}]}}"""  # noqa: E501
    ),
    # In the second row a tag is inside the question.
    "math-shepherd": (
        r"""
{"input": "How? Step 1: a ки\nStep 2: b ки\nStep 3: c ки", "label": "How? Step 1: a +\nStep 2: b -\nStep 3: c +"}
{"input": "Mr. R is 5. ки\nStep 1: He is 5. ки", "label": "Mr. R is 5. -\nStep 1: He is 5. +"}
{"input": "Is it? We add. ки\nWe stop. ки", "label": "Is it? We add. +\nWe stop. -"}"""  # noqa: E501
    ),
    # The most frequent label counts; a tie is dropped.
    "chains": (
        """
{"question": "What is 3?", "steps": ["a", "b", "c"], "labels": [1, null, -1]}
{"question": "What is 3?", "steps": ["a"], "labels": [-1]}
{"question": "What is 3?", "steps": ["a", "d"], "labels": [1, 0]}
{"question": "What is 3?", "steps": ["a", "d"], "labels": [null, 1]}"""
    ),
    "stepwise": (
        """
{"prompt": "What is 3?", "completions": ["a", "b", "c"], "labels": [true, null, false]}
{"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q?"}], \
"completions": ["a", "b"], "labels": [1.0, 0.0]}"""
    ),
}
MALFORMED = {
    "pspo": (
        """
{"sentence": "a", "label": "2"}
{"sentence": "a", "label": true}
{"sentence": 5, "label": "1"}
{"sentence": "a </s><s> b </s><s> c", "label": "1"}"""
    ),
    "prm800k": (
        """
{"question": "x"}
{"question": {"problem": "q"}, "label": {"steps": [{"completions": [{"rating": 5}]}]}}
{"question": {"problem": "q"}, "label": {"steps": [{"completions": [{"text": "a", "rating": true}]}]}}
{"question": {"problem": "q"}, "label": {"steps": [{"completions": 5}]}}
{"question": {"problem": "q"}, "label": {"steps": [{"completions": [{"text": "a"}], "chosen_completion": true}]}}"""  # noqa: E501
    ),
    "math-shepherd": (
        """
{"input": "no tag", "label": "no tag"}
{"input": "Q? Step 1: a ки", "label": "Q? Step 1: a ?"}
{"input": "Q? Step 1: a ки", "label": "Q? Step 1: b +"}
{"input": "nothing asked ки", "label": "nothing asked +"}"""
    ),
    "chains": (
        """
{"question": "q", "steps": ["a"], "labels": [[]]}
{"question": "q", "steps": [" "], "labels": [1]}
{"steps": ["a"], "labels": [1]}
{"question": "q", "steps": "ab", "labels": [1, 1]}
{"question": 5, "steps": ["a"], "labels": [1]}
{"question": "q", "steps": ["a"], "labels": [true]}
{"question": "q", "steps": ["a"], "labels": [NaN]}
{"question": "q", "steps": ["a"], "labels": [0.5]}
{"question": "q", "steps": ["a"], "labels": ["1"]}"""
    ),
    "stepwise": (
        """
{"prompt": "q", "completions": ["a"], "labels": [0.5]}
{"prompt": "q", "completions": ["a"], "labels": [-1]}
{"prompt": "q", "completions": ["a"], "labels": [NaN]}
{"prompt": "q", "completions": ["a"], "labels": [[]]}
{"prompt": "q", "completions": ["a"], "labels": [1, 1]}
{"prompt": [{"role": "system", "content": "S"}], "completions": ["a"], "labels": [1]}
{"prompt": "q", "labels": [1]}"""
    ),
}


def write(folder, rows, name="data.jsonl"):
    path = folder / name
    path.write_text(
        rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows)), encoding="utf-8"
    )
    return path


def convert(folder, name, rows, *words):
    path = rows if isinstance(rows, Path) else write(folder, rows)
    output = folder / "steps.parquet"
    assert main([f"--{name}", str(path), *map(str, words), "--output", str(output)]) == 0
    return list(read_steps(output))


def seen(steps):
    """Return text of question and previous steps, step and label."""
    return ["|".join((s.question, *s.previous)) + f"> {s.current} {s.label}" for s in steps]


EXPECTED = {
    "pspo": ["> [1] . It says 3. 1", "|[1] . It says 3.> [2] . So it is 4. 0",
     "|[1] . It says 3.|[2] . So it is 4.> [3] . Option 1. -1",
     "|1. Other response.> 2. Its second step. 1", "|7. Middle of a third.> 8. Goes on. -1"],
    "prm800k": ["What is 2 + 3?> Add them. 1", "What is 2 + 3?|Add them.> It is 6. -1",
     "What is 2 + 3?|Add them.> Hmm. 0", "What is 2 + 3?|Add them.|It is 5.> Done. 1"],
    "math-shepherd": ["How?> Step 1: a 1", "How?|Step 1: a> Step 2: b -1",
     "How?|Step 1: a|Step 2: b> Step 3: c 1", "Mr. R is 5.> Step 1: He is 5. 1",
     "Is it?> We add. 1", "Is it?|We add.> We stop. -1"],
    "chains": ["What is 3?> a 1", "What is 3?|a|b> c -1"],
    "stepwise": ["What is 3?> a 1", "What is 3?|a|b> c -1", "Q?> a 1", "Q?|a> b -1"],
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_every_format_is_converted_and_malformed_rows_are_reported(
    tmp_path, capsys, monkeypatch, name
):
    good, malformed = (each[name].strip().splitlines() for each in (GOOD, MALFORMED))
    monkeypatch.setattr("prime_ext.step_rm.convert.MOST_MALFORMED", 1)
    path = write(tmp_path, "\n".join([*malformed, "7", *good, "{broken\n"]))
    steps = convert(tmp_path, name, path)
    printed = capsys.readouterr()
    numbers = [*range(1, len(malformed) + 2), len(malformed) + len(good) + 2]
    assert [line.split(": ")[0] for line in printed.err.splitlines() if " row " in line] == [
        f"{path} row {number}" for number in numbers
    ]
    assert json.loads(printed.out)["counts"]["malformed rows"] == len(numbers)
    assert seen(steps) == seen(convert(tmp_path, name, GOOD[name])) == EXPECTED[name]


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "no input"),
        (["--chains", "DATA"], "not in the format chains"),
        (["--pspo", "DATA", "--test", "0.6", "--validation", "0.5"], "--test 0.6"),
        (["--pspo", "DATA", "--seed", "-1"], "--seed: '-1' must be a whole number from 0"),
        (["--pspo", "DATA", "--test", "2"], "--test: '2' must be from 0 to 1"),
    ],
)
def test_what_cannot_work_is_one_line_and_writes_nothing(tmp_path, capsys, words, message):
    words = [word.replace("DATA", str(write(tmp_path, GOOD["pspo"]))) for word in words]
    assert main([*words, "--output", str(tmp_path / "steps.parquet")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("prime_ext: ") and message in last
    assert not [path for path in tmp_path.iterdir() if "parquet" in path.name]


TOM = "Tom has 3 apples and buys 14 more apples."


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("What is $\\dfrac{1}{2}$ of 1,000?", "what is \\frac{1}{2}  of 1000", True),
        ("Ａ cat has ３ legs.", "a cat has 3 legs", True),
        ("Find $\\left(x+1\\right)$.", "Find (x+1)", True),
        (TOM, "Tom has 5 apples, and buys 2.5 more apples!", True),
        (TOM, "Tim has 3 apples and buys 14 more apples.", False),
        ("3*7+2", "3*7+4", False),
    ],
)
def test_only_near_duplicate_questions_share_a_group(one, other, same):
    assert (name_group(one) == name_group(other)) is same
    assert name_group(TOM, "text") != name_group(TOM.replace("3", "5"), "text")


@given(st.integers(0, 5), st.floats(0, 0.5), st.floats(0, 0.4))
def test_split_shares_are_respected_and_independent_of_each_other(seed, validation, test):
    groups = [name_group(str(number)) for number in range(1000)]
    splits, fixed = (
        [pick_split(group, share, test, seed) for group in groups] for share in (validation, 0.0)
    )
    assert abs(splits.count("test") / 1000 - test) < 0.07
    assert abs(splits.count("validation") / 1000 - validation) < 0.07
    assert [split == "test" for split in splits] == [split == "test" for split in fixed]


SHARES = ("--validation", 0.3, "--test", 0.3)


def test_a_group_keeps_its_split_whatever_rows_are_read(tmp_path):
    questions = [
        f"Anna number {k} has {chr(97 + k % 26)} apples and eats some of them." for k in range(120)
    ]
    rows = [
        {"question": q, "steps": ["First.", f"Then {k}."], "labels": [1, -1]}
        for k, q in enumerate(questions)
    ]
    everything = convert(tmp_path, "chains", rows, *SHARES, "--near-duplicates", "text")
    split = {step.group: step.split for step in everything}
    part = convert(tmp_path, "chains", rows[:40:-1], *SHARES, "--near-duplicates", "text")
    assert (
        all(step.split == split[step.group] for step in [*everything, *part])
        and len(set(split.values())) == 3
    )
    assert len({step.group for step in convert(tmp_path, "chains", rows)}) == 26


def test_equal_pairs_without_a_question_are_in_one_split(tmp_path):
    rows = []
    for number in range(60):
        first = f"[1] . Story {chr(97 + number % 26)} {chr(97 + number // 26)}"
        second = "[2] . Both are the same."
        third = "[3] . Thus option 1."
        sentences = (first, f"{first} </s><s>{second}", f"{second} </s><s>{third}")
        rows += [{"sentence": sentence, "label": "1"} for sentence in sentences]
    steps = convert(tmp_path, "pspo", rows, *SHARES)
    assert len({step.split for step in steps}) == 3
    assert len({step.split for step in steps if step.current == third}) == 1


def test_false_is_not_a_neutral_step(tmp_path, capsys):
    path = write(tmp_path, '{"question": "q", "steps": ["a", "b"], "labels": [true, false]}')
    assert main(["--chains", str(path), "--output", str(tmp_path / "steps.parquet")]) == 2
    said = capsys.readouterr().err
    assert "row 1: labels 1 must be -1, 0 or 1, got True; write 1 for true and -1 for false" in said


@pytest.mark.parametrize(
    ("questions", "words", "message"),
    [
        # One template with other numbers: a single group.
        ([f"Tom has {k} apples and buys some more apples." for k in range(30)], (),
         "no step is in the split {} (30 steps of 1 questions): all are of one group"),
        (["a", "b"], ("--test", 0.001), "no step is in the split {} (2 steps of 2 questions): oth"),
    ],
)  # fmt: skip
def test_splits_without_a_step_are_named(tmp_path, capsys, questions, words, message):
    rows = [
        {"question": q, "steps": [f"We add {k}."], "labels": [1]} for k, q in enumerate(questions)
    ]
    steps = convert(tmp_path, "chains", rows, *words)
    missing = {"train", "validation", "test"} - {step.split for step in steps}
    said = capsys.readouterr().err
    assert missing and all(message.format(name) in said for name in missing)
    assert said.count("no step is in") == len(missing)
    convert(tmp_path, "chains", rows, "--validation", 0, "--test", 0)
    assert "no step is in" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": True}, "label must be one of (-1, 0, 1), got True"),
        ({"label": "1"}, "label must be one of (-1, 0, 1), got '1'"),
        ({"label": float("nan")}, "label must be one of (-1, 0, 1), got nan"),
        ({"split": "dev"}, "split must be one of ('train', 'validation', 'test'), got 'dev'"),
        ({"current": 5}, "current must be a text, got 5"),
        ({"current": " "}, "current is empty"),
        ({"previous": "ab"}, "previous must be a list, got 'ab'"),
        ({"previous": [5]}, "previous 1 must be a text, got 5"),
        ({"question": 5}, "question must be a text, got 5"),
    ],
)
def test_a_wrong_field_of_labeled_steps_is_named(tmp_path, change, message):
    row = {"question": "q", "previous": ["a"], "current": "b", "label": 1, "source": "s"}
    row |= {"split": "train", "group": "g"}
    path = write(tmp_path, [row, row | change])
    with pytest.raises(SourceError) as error:
        list(read_steps(path))
    assert str(error.value) == f"{path} row 2: {message}"
    path.write_text("")
    with pytest.raises(SourceError, match="has no rows"):
        list(read_steps(path))


def test_files_record_their_options_and_other_schemas_are_refused(tmp_path):
    convert(tmp_path, "chains", GOOD["chains"], "--seed", 3)
    file = pq.ParquetFile(tmp_path / "steps.parquet")
    types = {"previous": pa.list_(pa.string()), "label": pa.int8()}
    names = ("question", "previous", "current", "label", "source", "split", "group")
    assert file.schema_arrow.remove_metadata() == pa.schema(
        {name: types.get(name, pa.string()) for name in names}
    )
    description = json.loads(file.metadata.metadata[METADATA])
    assert description["options"]["seed"] == 3 and description["counts"]["label 1"] == 1
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    (tmp_path / "y.parquet").write_text("no")
    for name, message in (("x.parquet", "no column"), ("y.parquet", "y.parquet cannot be read")):
        with pytest.raises(SourceError, match=message):
            list(read_steps(tmp_path / name))
