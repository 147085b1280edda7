# SPDX-License-Identifier: Apache-2.0
"""The contamination report: what a row asks, which test rows training files give away, and how literally."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_preprocessing.contamination import Comparison, main
from data_preprocessing.rl_input import problem_texts
from data_preprocessing.text_similarity import LEVELS
from prime_ext.tasks.cells import is_whole
from prime_ext.utils.rows import BadRow

MESSAGES = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]


@pytest.mark.parametrize(
    ("row", "texts"),
    [
        ({"premise": "P", "hypothesis": "H", "label": "x"}, ("P", "H")),
        ({"statement1": "P", "statement2": "H"}, ("P", "H")),
        ({"question": " Q ", "problem": "not this"}, ("Q",)),
        ({"prompt": MESSAGES, "extra_info": {"index": 3}}, ("Q",)),
        ({"prompt": MESSAGES, "extra_info": {"texts": ["P", "H"]}}, ("P", "H")),
        ({"prompt": MESSAGES, "extra_info": {"question": "P"}}, ("P",)),
        *(({"prompt": prompt}, None) for prompt in ([1], [])),
        *((row, None) for row in ({"answer": "7"}, {"question": "  "}, {"question": 7})),
    ],
)
def test_the_question_is_found_by_its_column(row, texts):
    if texts is None:
        with pytest.raises(BadRow, match="no column|empty text|neither a text"):
            problem_texts(row)
    else:
        assert problem_texts(row) == texts


def test_columns_can_be_named_and_shared_instructions_cut_out():
    row = {"problem": "P", "body": "Add 3 and 4. Think step by step."}
    assert problem_texts(row, columns=("body",), remove=("Think step by step.",)) == ("Add 3 and 4.",)


TEST = "Mira picked 14 pears and her brother picked 9 pears. How many pears did they carry home to the village?"


@pytest.mark.parametrize(
    ("train", "level"),
    [
        (TEST, "exact"),
        (TEST.upper().replace(".", " ;"), "normalised"),
        (TEST.replace("14", "31"), "numbers"),
        (TEST.replace("Mira", "Hanna"), "near"),
        (f"Read this first, a long introduction about orchards, ladders and baskets. {TEST} Show all work.", "ngrams"),
        (TEST.replace(".", " -"), "numbers"),
        ("Sami picked 3 plums. How many are left?", None),
    ],
)
def test_levels_from_the_most_literal_to_the_least(train, level):
    index = Comparison()
    index.add([TEST], (0, 1))
    assert index.pass_by([train], (0, 1)) == level
    hit = index.hit(0)
    assert (hit and hit.level) == level
    assert hit is None or (hit.text == train and 0.7 <= hit.similarity <= 1)


def test_the_most_literal_and_then_the_most_similar_training_row_is_shown():
    index = Comparison()
    index.add([TEST], (0, 1))
    near = TEST.replace("Mira", "Hanna")
    for place, text in (((0, 1), near.replace("pears", "apples")), ((0, 2), near)):
        index.pass_by([text], place)
    assert index.hit(0).place == (0, 2)
    index.pass_by([TEST], (1, 5))
    assert index.hit(0).level == "exact" and index.hit(0).place == (1, 5)


def test_a_premise_that_is_shared_is_a_hit_of_its_own_kind_unless_it_is_short():
    index = Comparison()
    cars = "It carries many cars and trams every single day."
    index.add(["The old bridge of 1931 is 640 metres long.", cars], (0, 1))
    index.add(["Eleven ferries went out in the morning fog.", "4 in all"], (0, 2))
    assert index.pass_by(["The old bridge of 1950 is 640 metres long.", "It is short."], (0, 1)) == "part"
    assert index.pass_by(["Some quite unrelated sentence about lighthouses.", "4 in all"], (0, 2)) is None


@given(st.lists(st.text(max_size=60).filter(lambda text: text.strip() and is_whole(text)), min_size=1, max_size=4))
def test_every_text_hits_itself_exactly_and_nothing_breaks_the_index(texts):
    index = Comparison()
    for row, text in enumerate(texts):
        index.add([text], (0, row))
    for row, text in enumerate(texts):
        assert index.pass_by([text], (0, row)) == "exact"
        alone = texts.count(text) == 1
        assert (index.pass_by([text], (1, row), itself=(0, row)) == "exact") is not alone
    assert all(index.hit(key).level == "exact" for key in range(len(texts)))


def _lines(path, texts):
    path.write_text("".join(json.dumps({"question": text}) + "\n" for text in texts))
    return str(path)


def test_the_command_writes_counts_and_examples(tmp_path, capsys):
    train = _lines(tmp_path / "train.jsonl", [TEST.replace("14", "31"), "Nothing like it at all.", " "])
    test = _lines(tmp_path / "test.jsonl", [TEST, "An entirely different question about a clock."])
    caught = tmp_path / "caught.jsonl"
    assert main([train, "--test", test, "--output", str(tmp_path / "out" / "r.1"), "--caught", str(caught)]) == 0
    report = json.loads((tmp_path / "out" / "r.1.json").read_text())
    assert report["test"][0]["by_level"] == {level: int(level == "numbers") for level in LEVELS}
    assert report["test"][0]["share"] == 0.5 and report["train"][0]["hitting"] == 1
    assert report["train"][0]["unusable"] == {"an empty text": 1}
    (example,) = report["test"][0]["examples"]
    assert example["test"] == TEST and example["train_row"] == 1 and example["similarity"] == 1
    assert json.loads(caught.read_text()) == {"file": report["train"][0]["file"], "row": 1, "level": "numbers"}
    markdown = (tmp_path / "out" / "r.1.md").read_text()
    assert "| 2 | 1 | 50.0 % | 0 | 0 | 1 | 0 | 0 | 0 |" in markdown and "1 rows: an empty text" in markdown
    assert "1 of 2 rows (50.0 %) numbers 1" in capsys.readouterr().out
    assert str(tmp_path) not in markdown + json.dumps(report)


def test_a_file_on_both_sides_is_compared_with_itself_but_no_row_with_itself(tmp_path):
    texts = [TEST, "Alone in this file and in the world.", TEST, TEST.replace("14", "8")]
    twins = _lines(tmp_path / "rows.jsonl", texts)
    assert main([twins, "--test", twins, "--output", str(tmp_path / "r")]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["test"][0]["by_level"] == {**dict.fromkeys(LEVELS, 0), "exact": 2, "numbers": 1}
    assert report["train"][0]["hitting"] == 3
    rows = {example["test_row"]: example["train_row"] for example in report["test"][0]["examples"]}
    assert rows == {1: 3, 3: 1, 4: 1}
