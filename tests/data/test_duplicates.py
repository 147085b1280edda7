# SPDX-License-Identifier: Apache-2.0
"""Of every group of twins the first row stays: compared with a search through all pairs."""

import random

import numpy as np
import pytest

from data_preprocessing.duplicates import (
    MOST_ROWS_OF_A_PHRASE,
    TWIN_LEVELS,
    Compared,
    Sketcher,
    first_of_each,
    shared_keys,
    twin_level,
)
from data_preprocessing.text_similarity import Settings

PLAIN = Settings(mask_numbers=False)
LONG = "A farmer sells seven baskets of ripe apples on the market of the small town every morning for three coins each"


def twins_of(texts, settings=PLAIN, levels=TWIN_LEVELS, answers=None):
    rows = [Compared(text, answer) for text, answer in zip(texts, answers or [""] * len(texts), strict=True)]
    sketcher = Sketcher(settings)
    keys = np.array([sketcher.keys(row.text) for row in rows])
    return [(twin.row, twin.of, twin.level) for twin in first_of_each(keys, iter(rows), settings, levels)]


def test_the_first_stays_and_the_levels_say_how_literal_a_twin_is():
    texts = [
        LONG,
        "Something else entirely is asked here, and nobody has asked it before",
        LONG.upper() + "!",
        LONG.replace("small", "tiny"),
        "One day, after a long and stormy night on the wide sea in his boat, he heard this: " + LONG,
    ]
    assert twins_of(texts) == [(2, 0, "exact"), (3, 0, "near"), (4, 0, "ngrams")]
    assert twins_of(texts, levels=["exact"]) == [(2, 0, "exact")]


@pytest.mark.parametrize(("left", "right"), [("Solve x^2 - 3x = 1", "Solve x^2 + 3x = 1"), ("3 + 4", "3 * 4")])
def test_another_operator_is_no_exact_twin(left, right):
    assert twins_of([left, right], levels=["exact"]) == []


def test_twins_must_have_the_same_answer_unless_they_are_the_same_text():
    texts = [LONG, LONG.replace("small", "tiny"), LONG + ".", LONG.replace(" ", "\n")]
    assert twins_of(texts, answers=["21", "22", "23", "24"]) == [(3, 0, "exact")]
    assert twins_of(texts, answers=["21"] * 4) == [(1, 0, "near"), (2, 0, "exact"), (3, 0, "exact")]
    assert twins_of(["$88 / 4 / 2$?", "$88 / (4 / 2)$?"], answers=["11", "44"]) == []


def test_numbers_count_unless_they_are_masked():
    texts = [LONG.replace("seven", "7"), LONG.replace("seven", "123456789 + 987654321 + 192837465")]
    assert twins_of(texts, Settings(threshold=0.95, ngram_share=1.0, mask_numbers=False)) == []
    assert len(twins_of([LONG.replace("seven", "7"), LONG.replace("seven", "98765432")], Settings(threshold=1.0))) == 1


def test_being_a_twin_is_not_passed_on_through_a_row_that_went():
    words = LONG.split()
    chain = [" ".join(["other"] * n + words[n:]) for n in range(0, 12, 2)]
    settings = Settings(threshold=0.8, ngram_share=1.0, mask_numbers=False)
    gone = {row: of for row, of, _ in twins_of(chain, settings)}
    assert gone and len(gone) < len(chain) - 1
    assert not set(gone.values()) & set(gone)


def test_the_keys_find_what_a_search_through_all_pairs_finds():
    generator = random.Random(1)
    words = [f"word{n}" for n in range(30)]
    texts = [" ".join(generator.choices(words, k=25)) for _ in range(60)]
    for text in list(texts):
        changed = text.split()
        changed[generator.randrange(25)] = "new"
        texts.insert(generator.randrange(len(texts)), " ".join(changed))
    staying, expected = [], []
    for number, text in enumerate(texts):
        row = Compared(text)
        if any(twin_level(row, Compared(texts[other]), PLAIN, TWIN_LEVELS) for other in staying):
            expected.append(number)
        else:
            staying.append(number)
    assert len(expected) >= 50
    assert [row for row, _, _ in twins_of(texts)] == expected


def test_phrases_of_many_rows_and_keys_of_one_row_name_nothing():
    n = MOST_ROWS_OF_A_PHRASE + 1
    keys = np.zeros((n, 1 + 16 + 16), dtype=np.uint64)
    keys[:, 17] = 5
    keys[:2, 18] = 6
    keys[0, 0] = 7
    shared = shared_keys(keys, 16)
    assert not shared[:, 17].any() and shared[:2, 18].tolist() == [6, 6] and shared[0, 0] == 0


def test_no_rows_have_no_twins():
    assert list(first_of_each(np.zeros((0, 33), dtype=np.uint64), iter([]), PLAIN)) == []
