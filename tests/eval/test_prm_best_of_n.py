# SPDX-License-Identifier: Apache-2.0
"""Best-of-N, votes and pass@N equal averages over all subsets."""

import random
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.prm_best_of_n import aggregate, best_of, draw_subsets, pass_at, vote
from eval.prm_tasks import pool_sizes, vote_weights
from prime_ext.offline_prm.data import BadData

RNG = np.random.default_rng(0)


@st.composite
def pools(draw):
    n = draw(st.integers(1, 7))
    correct = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    scores = draw(st.lists(st.integers(-2, 2).map(float), min_size=n, max_size=n))
    # Correct candidates agree; wrong ones may.
    answers = [
        None if kind == 0 else "right" if right else f"wrong {kind}"
        for kind, right in zip(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), correct, strict=True)
    ]
    return correct, scores, answers, draw(st.integers(1, n))


@given(pools())
def test_closed_forms_equal_the_average_over_all_subsets(pool):
    correct, scores, _, draws = pool
    subsets = list(combinations(range(len(correct)), draws))

    def chosen(subset):
        highest = max(scores[k] for k in subset)
        return fmean(correct[k] for k in subset if scores[k] == highest)

    assert best_of(scores, correct, draws) == pytest.approx(fmean(map(chosen, subsets)))
    assert pass_at(correct, draws) == pytest.approx(fmean(any(correct[k] for k in s) for s in subsets))


@given(pools())
def test_votes_equal_the_average_over_all_subsets(pool):
    correct, scores, answers, draws = pool
    weights = [2.0**score for score in scores]

    def winner(subset):
        sums = {}
        for k in subset:
            if answers[k] is not None:
                sums[answers[k]] = sums.get(answers[k], 0.0) + weights[k]
        best = [answer for answer, total in sums.items() if total == max(sums.values())]
        return fmean(answer == "right" for answer in best) if best else 0.0

    expected = fmean(map(winner, combinations(range(len(correct)), draws)))
    subsets = draw_subsets(len(correct), draws, 10**6, RNG)
    assert subsets.exact and vote(answers, weights, correct, subsets) == (pytest.approx(expected), 0.0)


def test_by_hand():
    # The best of two of [3, 2, 1] with only the second correct: 3 wins two pairs, 2 one.
    assert best_of([3.0, 2.0, 1.0], [False, True, False], 2) == pytest.approx(1 / 3)
    assert best_of([1.0, 1.0], [True, False], 2) == 0.5
    assert pass_at([True, False, False, False], 2) == pytest.approx(0.5)
    everything = draw_subsets(5, 5, 10, RNG)
    answers, correct = ["4", "4", "5", "5", "5"], [True, True, False, False, False]
    assert vote(answers, [1.0] * 5, correct, everything) == (0.0, 0.0)
    # Two confident votes outweigh three doubtful ones.
    assert vote(answers, [0.9, 0.9, 0.1, 0.2, 0.3], correct, everything) == (1.0, 0.0)
    assert vote([None] * 5, [1.0] * 5, correct, everything) == (0.0, 0.0)


def test_one_candidate_is_chance_and_all_of_them_leave_nothing_to_chance():
    correct, scores = [True, False, False, True], [0.1, 0.9, 0.3, 0.4]
    assert best_of(scores, correct, 1) == pass_at(correct, 1) == 0.5
    assert best_of(scores, correct, 4) == 0.0 and pass_at(correct, 4) == 1.0


def test_a_pool_of_64_is_sampled_and_says_how_exactly():
    rng = random.Random(0)
    correct = [rng.random() < 0.4 for _ in range(64)]
    answers = ["right" if right else f"wrong {rng.randrange(3)}" for right in correct]
    values = []
    for seed in range(30):
        subsets = draw_subsets(64, 8, 200, np.random.default_rng(seed))
        assert not subsets.exact and all(len(set(row)) == 8 for row in subsets.member_RN.tolist())
        values.append(vote(answers, [1.0] * 64, correct, subsets))
    spread = np.std([value for value, _ in values], ddof=1)
    assert 0.6 < spread / fmean(error for _, error in values) < 1.5


@given(st.permutations(range(6)))
def test_the_order_of_the_candidates_does_not_matter(order):
    correct, scores = [True, False, True, False, False, False], [0.2, 0.5, 0.5, 0.1, 0.9, 0.2]
    picked = [scores[k] for k in order], [correct[k] for k in order]
    assert best_of(*picked, 3) == pytest.approx(best_of(scores, correct, 3))


def test_aggregations():
    steps = [0.5, 0.2, 0.8]
    expected = {"min": 0.2, "sum": 1.5, "last": 0.8, "mean": 0.5, "product": 0.08}
    assert {how: pytest.approx(aggregate(steps, how)) for how in expected} == expected
    with pytest.raises(ValueError, match="aggregation must be one of"):
        aggregate(steps, "max")
    with pytest.raises(ValueError, match="without steps"):
        aggregate([], "min")


def test_weights_of_votes_are_sigmoids_however_negative_the_scores_are():
    low, high = vote_weights([-1000.0, -999.0], implicit=True)
    assert high == 1.0 and low == pytest.approx(np.exp(-1.0))
    assert vote_weights([0.0, 50.0, -np.inf], implicit=True) == [pytest.approx(0.5), 1.0, 0.0]
    assert vote_weights([0.3, -np.inf], implicit=False) == [0.3, 0.0]


def test_values_of_n():
    assert pool_sizes(None, 64) == [1, 2, 4, 8, 16, 32, 64] and pool_sizes(None, 5) == [1, 2, 4]
    assert pool_sizes("1,3", 5) == [1, 3]
    with pytest.raises(BadData, match="the smallest pool has 5 candidates"):
        pool_sizes("8", 5)
    with pytest.raises(BadData, match="must be whole numbers"):
        pool_sizes("a", 5)
