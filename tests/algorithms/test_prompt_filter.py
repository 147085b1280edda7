# SPDX-License-Identifier: Apache-2.0
"""The accuracy band and the reliability gate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.algorithms.prm_accuracy import PairCount
from prime_ext.algorithms.prompt_filter import FAILED, KEPT, TOO_EASY, TOO_HARD, TRUNCATED, AccuracyBand
from prime_ext.algorithms.reliability_gate import ReliabilityGate

BAND = AccuracyBand(lower=0.2, upper=0.8)


@pytest.mark.parametrize("correct, verdict", [(0, TOO_HARD), (1, KEPT), (2, KEPT), (3, KEPT), (4, KEPT), (5, TOO_EASY)])
def test_the_bounds_are_inclusive_with_five_rollouts(correct, verdict):
    assert BAND.classify([1.0] * correct + [0.0] * (5 - correct), [False] * 5) == verdict


@given(st.integers(1, 64), st.data())
def test_bounds_that_are_fractions_of_the_group_size_are_met_exactly(n, data):
    lower = data.draw(st.integers(0, n))
    upper = data.draw(st.integers(lower, n))
    correct = data.draw(st.integers(0, n))
    verdict = AccuracyBand(lower / n, upper / n).classify([1.0] * correct + [0.0] * (n - correct), [False] * n)
    assert verdict == (TOO_HARD if correct < lower else TOO_EASY if correct > upper else KEPT)


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.7]), min_size=1, max_size=10))
def test_soft_accuracies_are_averaged_in_any_order(accuracies):
    whole = [False] * len(accuracies)
    assert BAND.classify(accuracies, whole) == BAND.classify(accuracies[::-1], whole)
    mean = sum(accuracies) / len(accuracies)
    assert BAND.classify(accuracies, whole) == (TOO_HARD if mean < 0.2 - 1e-6 else KEPT)


def test_one_truncated_rollout_drops_the_prompt_only_when_asked():
    assert AccuracyBand(drop_truncated=True).classify([1.0, 0.0], [True, False]) == TRUNCATED
    assert AccuracyBand(drop_truncated=True).classify([1.0, 0.0], [False, False]) == KEPT
    assert AccuracyBand(drop_truncated=False).classify([1.0, 0.0], [True, False]) == KEPT


def test_a_prompt_without_any_finished_rollout_has_failed():
    assert BAND.classify([], []) == FAILED
    assert AccuracyBand(0.0, 1.0).classify([], []) == FAILED


def test_a_band_from_zero_to_one_keeps_everything_that_finished():
    assert AccuracyBand(0.0, 1.0).classify([0.0], [False]) == KEPT == AccuracyBand(0.0, 1.0).classify([1.0], [False])


def pairs(accuracy, total=10.0):
    return PairCount(accuracy * total, total)


def test_with_equally_many_pairs_the_gate_opens_with_the_running_pair_accuracy():
    gate = ReliabilityGate(decay=0.8)
    assert gate.average == 0.5 and gate.update(pairs(0.5)) == 0.0
    # 0.8 * 0.5 + 0.2 * 1.0 = 0.6, then 0.8 * 0.6 + 0.2 * 1.0 = 0.68
    assert gate.update(pairs(1.0)) == pytest.approx(0.2)
    assert gate.update(pairs(1.0)) == pytest.approx(0.36)


def test_a_pair_weighs_as_much_in_a_small_batch_as_in_a_large_one():
    gate = ReliabilityGate(decay=0.8)
    gate.update(pairs(0.7, total=100.0))
    # Right 0.8 * 54 + 0.2 * 0 of 0.8 * 100 + 0.2 * 1; by batches it would be 0.432.
    gate.update(pairs(0.0, total=1.0))
    assert gate.average == pytest.approx(43.2 / 80.2)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 50)), max_size=8), st.floats(0, 0.99), st.floats(0, 1))
def test_the_running_accuracy_is_the_weighted_mean_over_all_batches(batches, decay, start):
    gate = ReliabilityGate(decay, start)
    for accuracy, total in batches:
        gate.update(pairs(accuracy, total))
    seen = [batch for batch in batches if batch[1]]
    if not seen:
        assert gate.average == start
        return
    weight = [(1 - decay) * decay ** (len(seen) - 1 - k) * total for k, (_, total) in enumerate(seen)]
    mean = sum(w * accuracy for w, (accuracy, _) in zip(weight, seen, strict=True))
    first = decay ** len(seen) * seen[0][1]
    assert gate.average == pytest.approx((first * start + mean) / (first + sum(weight)), abs=1e-9)


def test_a_batch_without_pairs_leaves_the_gate_where_it_is():
    gate = ReliabilityGate()
    assert gate.update(PairCount(0.0, 0.0)) == 0.0 and gate.average == 0.5
    assert gate.update(pairs(1.0)) == gate.update(PairCount(0.0, 0.0)) == pytest.approx(0.2)


def test_a_prm_worse_than_a_coin_keeps_the_gate_shut():
    gate = ReliabilityGate()
    assert [gate.update(pairs(0.0)) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert gate.average == pytest.approx(0.5 * 0.8**3)


def test_a_perfect_prm_opens_the_gate_to_one():
    gate = ReliabilityGate()
    for _ in range(200):
        value = gate.update(pairs(1.0))
    assert value == pytest.approx(1.0) and value <= 1.0
