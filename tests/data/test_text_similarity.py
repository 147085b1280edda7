# SPDX-License-Identifier: Apache-2.0
"""Near-duplicates: what is proposed by MinHash is decided exactly, and nothing near is missed."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_preprocessing.text_similarity import Settings, SimilarityIndex, connected, jaccard, shingles, word_ngrams
from prime_ext.step_rm.question_split import normal_form

WORDS = "river stone market engine letter window garden seven carry build often under bright slowly".split()


def _sentence(rng, n=30):
    return " ".join(rng.choice(WORDS) + rng.choice("abcdefgh") for _ in range(n))


def test_shingles_are_of_the_whole_text_if_it_is_short():
    assert len(shingles("abc", 5)) == 1 and shingles("abc", 5) != shingles("abd", 5)
    assert len(shingles("abcdefg", 5)) == 3
    assert shingles("", 5) == shingles("", 5)


def test_word_ngrams():
    assert word_ngrams("a b c d", 3) == {"a b c", "b c d"}
    assert word_ngrams("a b", 3) == frozenset()


def test_the_index_finds_what_comparing_all_pairs_finds():
    """The reference: Jaccard similarity of every pair. MinHash may miss a pair; at these settings next to none."""
    rng = random.Random(3)
    texts = []
    for _ in range(60):
        text = _sentence(rng)
        words = text.split()
        for changed in range(5):
            copy = words[:]
            for place in rng.sample(range(len(copy)), changed):
                copy[place] = rng.choice(WORDS)
            texts.append(" ".join(copy))
    settings = Settings()
    index = SimilarityIndex(settings)
    for text in texts:
        index.add(text)
    forms = [shingles(normal_form(text), settings.shingle) for text in texts]
    expected = {
        (left, right): jaccard(forms[left], forms[right])
        for left in range(len(texts))
        for right in range(len(texts))
        if jaccard(forms[left], forms[right]) >= settings.threshold
    }
    found = {(left, right): value for left, text in enumerate(texts) for right, value in index.near(text)}
    assert len(expected) > 2 * len(texts) > 0
    assert found.items() <= expected.items()
    assert len(found) >= 0.995 * len(expected)


@given(st.lists(st.sampled_from(["Mira has 3 pears and eats 2 of them slowly", "x", "", "3*4", "Mira has 5"])))
def test_texts_that_cannot_be_told_apart_are_one_entry_under_the_first(texts):
    index = SimilarityIndex()
    for text in texts:
        index.add(text)
    forms = [normal_form(text) for text in texts]
    assert index.same_shingles == [forms.index(form) for form in forms]


def test_numbers_of_a_story_do_not_count_unless_asked():
    left = "Mira picked 14 pears and her brother picked 9 pears in the old orchard by the river"
    right = left.replace("14", "205").replace("9", "61")
    for masked, expected in ((True, 1.0), (False, None)):
        index = SimilarityIndex(Settings(mask_numbers=masked))
        index.add(left)
        assert dict(index.near(right)).get(0) == expected


def test_a_text_that_is_inside_a_longer_one_is_found_by_its_word_ngrams():
    rng = random.Random(5)
    short = _sentence(rng, 20)
    index = SimilarityIndex()
    index.add(short)
    index.add("too short for this test")
    longer = f"{_sentence(rng, 60)} {short} {_sentence(rng, 60)}"
    assert not list(index.near(longer))
    assert list(index.contained(longer)) == [(0, 1.0)]
    assert index.same_ngrams == [0, None]


def test_the_chance_to_find_a_pair_follows_from_bands_and_rows():
    settings = Settings(bands=16, rows=5)
    assert settings.recall(0.8) == pytest.approx(0.9983, abs=1e-4)
    assert settings.recall(1.0) == 1.0 and settings.recall(0.0) == 0.0


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2)))))
def test_components_are_named_by_their_least_member(case):
    n, links = case
    roots = connected(n, links)
    # The reference: spread the least number along the links until nothing changes.
    names = list(range(n))
    for _ in range(n):
        for left, right in links:
            names[left] = names[right] = min(names[left], names[right])
    assert roots == names
