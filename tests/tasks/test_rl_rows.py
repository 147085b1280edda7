# SPDX-License-Identifier: Apache-2.0
"""Gold answers of rows, as checks and reward managers read them."""

import pytest

from prime_ext.tasks.rl_rows import get_gold


@pytest.mark.parametrize("gold", [0, "0", [], {"tests": []}])
def test_any_value_but_an_empty_text_is_a_gold_answer(gold):
    assert get_gold({"ground_truth": gold}) == gold


@pytest.mark.parametrize("row", [None, "7", {}, {"ground_truth": None}, {"ground_truth": ""}])
def test_rows_without_a_gold_answer_have_none(row):
    assert get_gold(row) is None
