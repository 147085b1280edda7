# SPDX-License-Identifier: Apache-2.0
"""Returns, whitening, normalisations, and the running guards of a step, against loops and closed forms."""

import math
import statistics

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from rollout_batches import batches, orders, to_go

from prime_ext.algorithms.normalization import NORMALIZATIONS
from prime_ext.algorithms.prm_accuracy import PairCount
from prime_ext.algorithms.prompt_filter import KEPT, TOO_EASY, TOO_HARD, AccuracyBand
from prime_ext.algorithms.reliability_gate import ReliabilityGate
from prime_ext.algorithms.returns import return_to_go, whiten

discounts = st.sampled_from([1.0, 0.99, 0.5])


def return_by_loops(batch, discount):
    return batch.on_tokens(lambda i: to_go(batch.rewards(i), discount))


def valid_values(batch, value_BT):
    return value_BT[batch.mask_BT.bool()].tolist()


@given(batches(), discounts)
def test_return_steps_over_holes_and_ignores_padding(batch, discount):
    torch.testing.assert_close(return_to_go(batch.reward_BT, batch.mask_BT, discount), return_by_loops(batch, discount))


@given(batches())
def test_whitened_values_have_mean_zero_and_variance_one_over_valid_tokens(batch):
    values = batch.reward_BT[batch.mask_BT.bool()]
    assume(len(values) > 1 and float(values.std()) > 0.01)
    result = whiten(batch.reward_BT, batch.mask_BT)
    valid = result[batch.mask_BT.bool()]
    mean = sum(values.tolist()) / len(values)
    variance = sum((v - mean) ** 2 for v in values.tolist()) / (len(values) - 1)
    expected = [(v - mean) / math.sqrt(variance + 1e-8) for v in values.tolist()]
    assert valid.tolist() == pytest.approx(expected, abs=1e-9)
    assert float(valid.mean()) == pytest.approx(0.0, abs=1e-9)
    assert float(valid.var()) == pytest.approx(1.0, abs=1e-3)
    assert not result[~batch.mask_BT.bool()].any()


@pytest.mark.parametrize("n_valid", [0, 1])
def test_whitening_fewer_than_two_tokens_gives_zeros(n_valid):
    mask_BT = torch.tensor([[1.0, 0.0]]) if n_valid else torch.zeros(1, 2)
    assert whiten(torch.tensor([[3.0, float("nan")]]), mask_BT).tolist() == [[0.0, 0.0]]


# ---- normalisations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(NORMALIZATIONS))
@given(batch=batches(), discount=discounts, floor=st.sampled_from([0.0, 2.0]), seed=st.integers(0, 1000))
def test_statistics_are_those_of_the_global_batch_in_any_order(name, batch, discount, floor, seed):
    """Taken per rank, as in the original, the result would depend on the number of ranks."""
    rewards = valid_values(batch, batch.reward_BT)
    returns = valid_values(batch, return_by_loops(batch, discount))
    expected, epsilon = {
        "batch_max": (max(map(abs, returns)), 1e-6),
        "return_std": (statistics.stdev(returns) if len(returns) > 1 else 0.0, 1e-6),
        "none": (1.0, 0.0),
    }[name]
    expected = expected if name == "none" else max(expected, floor)
    assume(expected > 1e-3)
    order = orders(batch, seed)
    scaled_BT, scale = NORMALIZATIONS[name](batch.reward_BT[order], batch.mask_BT[order], discount, floor)
    assert float(scale) == pytest.approx(expected)
    if floor == 0.0:
        assert float(NORMALIZATIONS[name](batch.reward_BT, batch.mask_BT, discount)[1]) == pytest.approx(expected)
    back_BT = scaled_BT[torch.tensor(order).argsort()]
    wanted = [reward / (expected + epsilon) for reward in rewards]
    assert valid_values(batch, back_BT) == pytest.approx(wanted, rel=1e-6, abs=1e-7)


# ---- filter and gate ---------------------------------------------------------------------------------------------

BAND = AccuracyBand(lower=0.2, upper=0.8)


@pytest.mark.parametrize("correct, verdict", [(0, TOO_HARD), (1, KEPT), (2, KEPT), (3, KEPT), (4, KEPT), (5, TOO_EASY)])
def test_the_bounds_are_inclusive_with_five_rollouts(correct, verdict):
    assert BAND.classify([1.0] * correct + [0.0] * (5 - correct), [False] * 5) == verdict


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
