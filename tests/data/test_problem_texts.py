# SPDX-License-Identifier: Apache-2.0
"""The texts of a problem in rows of any shape."""

import pytest

from data_preprocessing.problem_texts import problem_texts
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
    ],
)
def test_the_question_is_found_by_its_column(row, texts):
    assert problem_texts(row) == texts


def test_columns_can_be_named_and_shared_instructions_cut_out():
    row = {"problem": "P", "body": "Add 3 and 4. Think step by step."}
    assert problem_texts(row, columns=("body",), remove=("Think step by step.",)) == ("Add 3 and 4.",)


@pytest.mark.parametrize("row", [{"answer": "7"}, {"question": "  "}, {"question": 7}, {"prompt": [1]}, {"prompt": []}])
def test_a_row_without_a_question_says_so(row):
    with pytest.raises(BadRow, match="no column|empty text|neither a text"):
        problem_texts(row)
