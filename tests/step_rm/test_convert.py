# SPDX-License-Identifier: Apache-2.0
"""Labelled steps of public formats in one schema, on splits that do not leak."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmark_rows import SAMPLES, data_folder
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.step_rm.convert.__main__ import main
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.question_split import group_of, normal_form, split_of
from prime_ext.step_rm.records import METADATA, SCHEMA, read_steps

PSPO = [
    {"sentence": "[1] . The premise says 3.\n", "label": "1"},
    {"sentence": "[1] . The premise says 3.\n </s><s>[2] . So it is 4.\n", "label": "0"},
    {"sentence": "[2] . So it is 4.\n </s><s>[3] . Option 1.", "label": "-1"},
    {"sentence": "1. Other response. </s><s> 2. Its second step.", "label": "1"},
    {"sentence": "7. Middle of a third. </s><s>8. Goes on.", "label": "-1"},
]
PRM800K_STEPS = [
    {"completions": [{"text": "Add them.", "rating": 1}], "human_completion": None, "chosen_completion": 0},
    {
        "completions": [
            {"text": "It is 6.", "rating": -1, "flagged": False},
            {"text": "Hmm.", "rating": 0},
            {"text": "???", "rating": -1, "flagged": True},
            {"text": "Unrated.", "rating": None},
        ],
        "human_completion": {"text": "It is 5.", "rating": None},
        "chosen_completion": None,
    },
    {"completions": [{"text": "Done.", "rating": 1}], "human_completion": None, "chosen_completion": None},
    {"completions": None, "human_completion": None, "chosen_completion": None},
]
PRM800K = [{"question": {"problem": "What is 2 + 3?"}, "label": {"steps": PRM800K_STEPS, "finish_reason": "give_up"}}]
SHEPHERD = [
    {
        "input": "How many? Step 1: Two and two. ки\nStep 2: Four. ки\nStep 3: The answer is: 4 ки",
        "label": "How many? Step 1: Two and two. +\nStep 2: Four. -\nStep 3: The answer is: 4 +",
    },
    # A tag inside the question.
    {"input": "Mr. R is 5. ки\nStep 1: He is 5. ки", "label": "Mr. R is 5. -\nStep 1: He is 5. +"},
    {"input": "Is it? We add. ки\nWe stop. ки", "label": "Is it? We add. +\nWe stop. -"},
]
PROCESSBENCH = [
    {"id": "a", "problem": "What is 1?", "steps": ["one", "two", "three"], "label": 1},
    {"id": "b", "problem": "What is 2?", "steps": ["one"], "label": -1},
]
CHAINS = [
    {"question": "What is 3?", "steps": ["a", "b", "c"], "labels": [1, None, -1]},
    {"prompt": "What is 4?", "completions": ["a", "b"], "labels": [True, False]},
]


def write(folder, rows, name="data.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def convert(folder, *words, expect=0):
    output = folder / "steps.parquet"
    assert main([*map(str, words), "--output", str(output)]) == expect
    return list(read_steps(output)) if expect == 0 else None


def seen(steps):
    return [(step.previous, step.current, step.label, step.step_index) for step in steps]


def test_pspo_rows_become_chains_with_all_previous_steps(tmp_path):
    steps = convert(tmp_path, "--pspo", write(tmp_path, PSPO))
    one, two, three = "[1] . The premise says 3.", "[2] . So it is 4.", "[3] . Option 1."
    assert seen(steps) == [
        ((), one, 1, 0),
        ((one,), two, 0, 1),
        ((one, two), three, -1, 2),
        (("1. Other response.",), "2. Its second step.", 1, 1),
        (("7. Middle of a third.",), "8. Goes on.", -1, 7),
    ]
    assert {step.question for step in steps} == {""} and {step.source for step in steps} == {"pspo:data"}


def test_prm800k_gives_every_rated_alternative_behind_the_steps_that_were_chosen(tmp_path):
    path = write(tmp_path, PRM800K)
    assert seen(convert(tmp_path, "--prm800k", path)) == [
        ((), "Add them.", 1, 0),
        (("Add them.",), "It is 6.", -1, 1),
        (("Add them.",), "Hmm.", 0, 1),
        (("Add them.", "It is 5."), "Done.", 1, 2),
    ]
    assert "???" in [step.current for step in convert(tmp_path, "--prm800k", path, "--keep-flagged")]


@pytest.mark.parametrize("neutral, label", [("keep", 0), ("positive", 1), ("negative", -1), ("drop", None)])
def test_neutral_ratings_are_an_option(tmp_path, neutral, label):
    steps = convert(tmp_path, "--prm800k", write(tmp_path, PRM800K), "--neutral", neutral)
    assert [step.label for step in steps if step.current == "Hmm."] == ([] if label is None else [label])


def test_math_shepherd_tags_are_read_beside_the_signs(tmp_path):
    steps = convert(tmp_path, "--math-shepherd", write(tmp_path, SHEPHERD))
    one, two = "Step 1: Two and two.", "Step 2: Four."
    assert seen(steps) == [
        ((), one, 1, 0),
        ((one,), two, -1, 1),
        ((one, two), "Step 3: The answer is: 4", 1, 2),
        ((), "Step 1: He is 5.", 1, 0),
        ((), "We add.", 1, 0),
        (("We add.",), "We stop.", -1, 1),
    ]
    assert [step.question for step in steps[2:5]] == ["How many?", "Mr. R is 5.", "Is it?"]


@pytest.mark.parametrize("rule, labels", [("drop", [1, -1]), ("negative", [1, -1, -1]), ("keep", [1, -1, 1])])
def test_what_follows_the_first_error_is_an_option(tmp_path, rule, labels):
    steps = convert(tmp_path, "--math-shepherd", write(tmp_path, SHEPHERD), "--after-error", rule)
    assert [step.label for step in steps if step.question == "How many?"] == labels


@pytest.mark.parametrize("words, labels", [((), [1, -1, 1]), (("--after-error", "negative"), [1, -1, -1, 1])])
def test_processbench_labels_the_steps_up_to_the_first_error(tmp_path, words, labels):
    steps = convert(tmp_path, "--processbench", write(tmp_path, PROCESSBENCH), *words)
    assert [step.label for step in steps] == labels


def test_chains_of_ones_own_and_of_trl(tmp_path):
    steps = convert(tmp_path, "--chains", write(tmp_path, CHAINS))
    assert seen(steps) == [((), "a", 1, 0), (("a", "b"), "c", -1, 2), ((), "a", 1, 0), (("a",), "b", -1, 1)]


MALFORMED = {
    "pspo": [{"sentence": "a", "label": "2"}, {"sentence": "a </s><s> b </s><s> c", "label": "1"}, {"label": "1"}],
    "prm800k": [
        {"question": "x"},
        {"question": {"problem": "q"}, "label": {"steps": [{"completions": [{"rating": 5}]}]}},
    ],
    "math-shepherd": [
        {"input": "no tag", "label": "no tag"},
        {"input": "Q? Step 1: a ки", "label": "Q? Step 1: a ?"},
        {"input": "Q? Step 1: a ки", "label": "Q? Step 1: b +"},
        {"input": "nothing asked ки", "label": "nothing asked +"},
    ],
    "processbench": [
        {"problem": "q", "steps": ["a"], "label": 1},
        {"problem": "q", "steps": [], "label": -1},
        {"problem": "q", "steps": ["a", " "], "label": -1},
        {"problem": "q", "steps": ["a"], "label": True},
    ],
    "chains": [
        {"question": "q", "steps": ["a"], "labels": [2]},
        {"question": "q", "steps": ["a"], "labels": [1, 1]},
        {"steps": ["a"], "labels": [1]},
        {"question": "q", "steps": ["a"], "labels": [[]]},
    ],
}  # fmt: skip
GOOD = {"pspo": PSPO, "prm800k": PRM800K, "math-shepherd": SHEPHERD, "processbench": PROCESSBENCH, "chains": CHAINS}


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_malformed_row_is_one_line_with_its_number_and_nothing_of_it_is_kept(tmp_path, capsys, name):
    path = write(tmp_path, [*MALFORMED[name], 7, *GOOD[name]])
    with path.open("a") as file:
        file.write("{broken\n")
    steps = convert(tmp_path, f"--{name}", path, "--max-malformed", 1)
    printed = capsys.readouterr()
    numbers = [*range(1, len(MALFORMED[name]) + 2), len(MALFORMED[name]) + len(GOOD[name]) + 2]
    assert [line.split(": ")[0] for line in printed.err.splitlines()] == [f"{path} row {number}" for number in numbers]
    assert json.loads(printed.out)["counts"]["malformed rows"] == len(numbers)
    assert seen(steps) == seen(convert(tmp_path, f"--{name}", write(tmp_path, GOOD[name])))


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "no input"),
        (["--pspo", "missing.jsonl"], "does not exist"),
        (["--chains", "DATA"], "not in the format chains"),
        (["--pspo", "EMPTY"], "has no rows"),
        (["--pspo", "DATA", "--test", "0.6", "--validation", "0.5"], "less than 1"),
    ],
)
def test_what_cannot_work_is_one_line_and_writes_nothing(tmp_path, capsys, words, message):
    names = {"DATA": str(write(tmp_path, PSPO)), "EMPTY": str(write(tmp_path, [], "empty.jsonl"))}
    convert(tmp_path, *[names.get(word, word) for word in words], expect=2)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("prime_ext: ") and message in last
    assert not [path for path in tmp_path.iterdir() if "parquet" in path.name]


# ---- the split ---------------------------------------------------------------------------------------------------

SAME = [
    ("What is $\\dfrac{1}{2}$ of 1,000?", "what is \\frac{1}{2}  of 1000"),
    ("Ａ cat has ３ legs.", "a cat has 3 legs"),
    ("Tom has 3 apples and buys 14 more apples.", "Tom has 5 apples, and buys 2.5 more apples!"),
    ("Find $\\left(x+1\\right)$.", "Find (x+1)"),
]
DIFFERENT = [
    ("Compute 3 + 4.", "Compute 3 + 5."),
    ("3*7+2", "3*7+4"),
    ("Tom has 3 apples and buys 14 more apples.", "Tim has 3 apples and buys 14 more apples."),
]


def test_near_duplicate_questions_are_one_group_and_those_that_ask_something_else_are_not():
    assert all(group_of(one) == group_of(other) for one, other in SAME)
    assert all(group_of(one) != group_of(other) for one, other in DIFFERENT)
    assert group_of(SAME[2][0], "text") != group_of(SAME[2][1], "text")


@given(st.text(max_size=80))
def test_any_text_has_a_normal_form_and_white_space_does_not_count(text):
    assert normal_form(f"  {text}\n") == normal_form(text)
    assert bool(normal_form(text)) == bool(text.strip())


@given(st.integers(0, 5), st.floats(0, 0.5), st.floats(0, 0.4))
def test_the_shares_are_about_those_asked_for_and_do_not_move_each_other(seed, validation, test):
    groups = [group_of(str(number)) for number in range(1000)]
    splits = [split_of(group, validation, test, seed) for group in groups]
    assert abs(splits.count("test") / 1000 - test) < 0.07
    assert abs(splits.count("validation") / 1000 - validation) < 0.07
    fixed = [split_of(group, 0.0, test, seed) for group in groups]
    assert [split == "test" for split in splits] == [split == "test" for split in fixed]


def chain_rows(n):
    questions = [f"Anna number {k} has {chr(97 + k % 26)} apples and eats some of them." for k in range(n)]
    return [{"question": q, "steps": ["First.", f"Then {k}."], "labels": [1, -1]} for k, q in enumerate(questions)]


def test_no_group_is_in_two_splits_and_files_and_their_order_do_not_matter(tmp_path):
    rows = chain_rows(120)
    shares = ("--validation", 0.3, "--test", 0.3, "--near-duplicates", "text")
    everything = convert(tmp_path, "--chains", write(tmp_path, rows), *shares)
    split = {step.group: step.split for step in everything}
    assert all(step.split == split[step.group] for step in everything) and len(set(split.values())) == 3
    part = convert(tmp_path, "--chains", write(tmp_path, rows[:40:-1]), *shares)
    assert all(step.split == split[step.group] for step in part)
    masked = convert(tmp_path, "--chains", write(tmp_path, rows))
    assert len({step.group for step in masked}) == 26


def test_questions_of_a_held_out_source_are_test_data_wherever_they_are(tmp_path):
    problem = "What is the number of apples that Anna has?"
    bench = write(tmp_path, [{"problem": problem, "steps": ["one"], "label": -1}], "bench.jsonl")
    other = write(tmp_path, [{"question": problem, "steps": ["two"], "labels": [1]}, *chain_rows(30)], "other.jsonl")
    steps = convert(tmp_path, "--chains", other, "--processbench", bench, "--hold-out", "processbench", "--test", 0)
    assert {step.current for step in steps if step.split == "test"} == {"one", "two"}


def test_the_same_pair_without_a_question_is_in_one_split_only(tmp_path):
    pair = "[2] . Both are the same. </s><s>[3] . Thus option 1."
    rows = []
    for number in range(60):
        first = f"[1] . Story {chr(97 + number % 26)} {chr(97 + number // 26)}"
        rows += [{"sentence": first, "label": "1"}]
        rows += [
            {"sentence": f"{first} </s><s>[2] . Both are the same.", "label": "1"},
            {"sentence": pair, "label": "1"},
        ]
    steps = convert(tmp_path, "--pspo", write(tmp_path, rows), "--validation", 0.3, "--test", 0.3)
    assert len({step.split for step in steps}) == 3
    assert len({step.split for step in steps if step.current == "[3] . Thus option 1."}) == 1


def test_duplicates_are_merged_by_majority_and_contradictions_dropped(tmp_path):
    rows = [{"question": "Why?", "steps": ["a"], "labels": [label]} for label in (1, -1, 1)]
    rows += [{"question": "Why?", "steps": ["b"], "labels": [label]} for label in (1, -1)]
    assert seen(convert(tmp_path, "--chains", write(tmp_path, rows))) == [((), "a", 1, 0)]


def test_the_file_has_the_documented_schema_and_says_how_it_was_made(tmp_path):
    convert(tmp_path, "--chains", write(tmp_path, CHAINS), "--seed", 3)
    file = pq.ParquetFile(tmp_path / "steps.parquet")
    assert file.schema_arrow.remove_metadata().equals(SCHEMA)
    description = json.loads(file.metadata.metadata[METADATA])
    assert description["options"]["seed"] == 3 and description["counts"]["label 1"] == 2


def test_a_file_of_another_schema_is_refused(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(StepRMError, match="no column"):
        list(read_steps(tmp_path / "x.parquet"))
    (tmp_path / "y.parquet").write_text("no")
    with pytest.raises(StepRMError, match="y.parquet cannot be read"):
        list(read_steps(tmp_path / "y.parquet"))


def test_the_real_processbench_converts_whole(tmp_path, capsys):
    folder = data_folder("processbench/gsm8k.json")
    steps = convert(tmp_path, "--processbench", folder / "processbench" / "gsm8k.json")
    assert "malformed" not in capsys.readouterr().err
    questions, wrong = len({step.question for step in steps}), sum(step.label == -1 for step in steps)
    assert (questions, wrong) == (20, 10) if folder == SAMPLES else questions > 250 and wrong == 207
