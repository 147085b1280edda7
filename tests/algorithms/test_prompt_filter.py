# SPDX-License-Identifier: Apache-2.0
"""The accuracy band and the reliability gate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.algorithms.prm_accuracy import PairCount
from prime_ext.algorithms.prompt_filter import FAILED, KEPT, TOO_EASY, TOO_HARD, AccuracyBand
from prime_ext.algorithms.reliability_gate import ReliabilityGate

BAND = AccuracyBand(lower=0.2, upper=0.8)


@pytest.mark.parametrize("correct, verdict", [(0, TOO_HARD), (1, KEPT), (2, KEPT), (3, KEPT), (4, KEPT), (5, TOO_EASY)])
def test_the_bounds_are_inclusive_with_five_rollouts(correct, verdict):
    assert BAND.classify([1.0] * correct + [0.0] * (5 - correct), [False] * 5) == verdict


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.7]), min_size=1, max_size=10))
def test_soft_accuracies_are_averaged_in_any_order(accuracies):
    whole = [False] * len(accuracies)
    assert BAND.classify(accuracies, whole) == BAND.classify(accuracies[::-1], whole)
    mean = sum(accuracies) / len(accuracies)
    assert BAND.classify(accuracies, whole) == (TOO_HARD if mean < 0.2 - 1e-6 else KEPT)


def test_a_prompt_without_any_finished_rollout_has_failed():
    assert BAND.classify([], []) == FAILED
    assert AccuracyBand(0.0, 1.0).classify([], []) == FAILED


def pairs(accuracy, total=10.0):
    return PairCount(accuracy * total, total)


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
