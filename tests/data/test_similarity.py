# SPDX-License-Identifier: Apache-2.0
"""Near-duplicates, twins and groups of problems: compared with a search through all pairs."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_preprocessing.deduplicate import (
    TWIN_LEVELS,
    Compared,
    find_twin_level,
    find_twins,
    sketch,
)
from data_preprocessing.text_similarity import (
    Settings,
    SimilarityIndex,
    compute_jaccard,
    find_near_groups,
    make_shingles,
)

WORDS = (
    "river stone market engine letter window garden seven carry build often under bright slowly"
).split()


def sentence(rng, n=30):
    return " ".join(rng.choice(WORDS) + rng.choice("abcdefgh") for _ in range(n))


def test_the_index_finds_what_comparing_all_pairs_finds():
    """Compare with the Jaccard similarity of every pair; MinHash may miss 0.5% of them."""
    rng = random.Random(3)
    texts = []
    for _ in range(60):
        words = sentence(rng).split()
        for changed in range(5):
            copy = words[:]
            for position in rng.sample(range(len(copy)), changed):
                copy[position] = rng.choice(WORDS)
            texts.append(" ".join(copy))
    index = SimilarityIndex()
    for text in texts:
        index.add(text)
    forms = [make_shingles(text, mask_numbers=True) for text in texts]
    values = {
        (a, b): compute_jaccard(left, right)
        for a, left in enumerate(forms)
        for b, right in enumerate(forms)
    }
    expected = {pair: value for pair, value in values.items() if value >= index.settings.threshold}
    hits = [(left, *hit) for left, text in enumerate(texts) for hit in index.hits(text)]
    near = {(left, entry[1]): value for left, entry, value in hits if entry[0] == "near"}
    assert len(expected) > 2 * len(texts) > 0
    assert near.items() <= expected.items() and len(near) >= 0.995 * len(expected)


def test_contained_texts_are_found_and_equal_ones_are_one_entry():
    rng = random.Random(5)
    short = sentence(rng, 20)
    index = SimilarityIndex()
    index.add(short)
    index.add("too short for this test")
    longer = f"{sentence(rng, 60)} {short} {sentence(rng, 60)}"
    assert index.hits(longer) == [(("ngrams", 0), 1.0)]
    index.add(short.upper())
    assert index.rows["ngrams", 0] == [0, 2] and index.rows["near", 0] == [0, 2]
    assert index.match(short, levels=["normalized", "near"]) == ("normalized", 1.0, 0)


# ---- twins ----

PLAIN = Settings()
LONG = (
    "A farmer sells seven baskets of ripe apples on the market of the small town every morning for"
    " three coins each"
)


def get_twins(texts, settings=PLAIN, levels=TWIN_LEVELS, answers=None):
    rows = [
        Compared(text, answers[name] if answers else "", name) for name, text in enumerate(texts)
    ]
    keys = np.array([sketch(row.text, settings) for row in rows])
    pairs = zip(rows, find_twins(rows, keys, settings, levels), strict=True)
    return [(row.name, twin[0].name, twin[1]) for row, twin in pairs if twin is not None]


def test_the_first_copy_stays_and_each_twin_has_its_level():
    texts = [
        LONG,
        "Something else entirely is asked here, and nobody has asked it before",
        LONG.upper() + "!",
        LONG.replace("small", "tiny"),
        "One day, after a long and stormy night on the wide sea in his boat, he heard this: "
        + LONG,
    ]
    assert get_twins(texts) == [(2, 0, "exact"), (3, 0, "near"), (4, 0, "ngrams")]
    assert get_twins(texts, levels=["exact"]) == [(2, 0, "exact")]
    for left, right in (("Solve x^2 - 3x = 1", "Solve x^2 + 3x = 1"), ("3 + 4", "3 * 4")):
        assert get_twins([left, right], levels=["exact"]) == []
    # Numbers count.
    assert (
        get_twins(
            [LONG.replace("seven", n) for n in ("7", "98765432")], Settings(1.0, ngram_share=1.0)
        )
        == []
    )


def test_twins_with_different_answers_must_have_the_same_text():
    texts = [LONG, LONG.replace("small", "tiny"), LONG + ".", LONG.replace(" ", "\n")]
    assert get_twins(texts, answers=["21", "22", "23", "24"]) == [(3, 0, "exact")]
    assert get_twins(texts, answers=["21"] * 4) == [
        (1, 0, "near"),
        (2, 0, "exact"),
        (3, 0, "exact"),
    ]
    assert get_twins(["$88 / 4 / 2$?", "$88 / (4 / 2)$?"], answers=["11", "44"]) == []


def test_removed_rows_do_not_remove_their_own_twins():
    words = LONG.split()
    chain = [" ".join(["other"] * n + words[n:]) for n in range(0, 12, 2)]
    gone = {row: of for row, of, _ in get_twins(chain, Settings(ngram_share=1.0))}
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
    staying = []
    expected = []
    for number, text in enumerate(texts):
        twin = any(
            find_twin_level(Compared(text), Compared(texts[other]), PLAIN, TWIN_LEVELS)
            for other in staying
        )
        (expected if twin else staying).append(number)
    assert len(expected) >= 50
    assert [row for row, _, _ in get_twins(texts)] == expected


# ---- groups: whatever decontamination would call a hit stays together ----

PREMISE = "Mira picked 14 pears and her brother picked 9 pears in the orchard"
PROBLEMS = [
    (PREMISE, "They picked 23 pears"),
    (PREMISE, "They have nothing at all to carry home in the evening"),
    ("Nobody had ever seen the keeper of the lighthouse smile", PREMISE.replace("14", "3")),
    ("The kettle on the stove has been boiling for an hour", "It is hot"),
    ("The kettle on the stove has been boiling for 2 hours",
     "It is cold, says the old man with the gray beard"),
    ("A ferry crosses 6 times", "It is hot"),
]  # fmt: skip


@given(st.permutations(PROBLEMS), st.integers(1, len(PROBLEMS)))
def test_names_of_groups_depend_on_neither_order_nor_other_groups(shuffled, n):
    groups = find_near_groups(PROBLEMS)
    assert groups[0] == groups[1] == groups[2]
    # "It is hot" is too short to name a problem.
    assert len({groups[0], groups[3], groups[5]}) == 3
    whole = dict(zip(PROBLEMS, groups, strict=True))
    assert dict(zip(shuffled, find_near_groups(shuffled), strict=True)) == whole
    kept = [
        problem
        for problem in PROBLEMS
        if whole[problem] in {whole[other] for other in shuffled[:n]}
    ]
    assert dict(zip(kept, find_near_groups(kept), strict=True)) == {
        problem: whole[problem] for problem in kept
    }


@given(st.lists(st.sampled_from(PROBLEMS), min_size=1, max_size=8))
def test_no_row_hits_a_row_of_another_group(problems):
    groups = find_near_groups(problems)
    for name in set(groups):
        index = SimilarityIndex()
        for problem, group in zip(problems, groups, strict=True):
            if group == name:
                index.add(*problem)
        assert not any(
            index.hits(*row) for row, group in zip(problems, groups, strict=True) if group != name
        )
