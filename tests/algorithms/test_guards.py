# SPDX-License-Identifier: Apache-2.0
"""Normalisations of the process rewards and the running scale relative to the outcome."""

import statistics

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from rollout_batches import batches, orders

from prime_ext.algorithms.normalization import NORMALIZATIONS, OutcomeRelativeScale
from prime_ext.algorithms.returns import return_to_go


def valid_values(batch, value_BT):
    return value_BT[batch.mask_BT.bool()].tolist()


@given(batches(), st.sampled_from([1.0, 0.9]))
def test_return_std_makes_the_returns_of_the_batch_of_spread_one_without_moving_zero(batch, discount):
    returns = valid_values(batch, return_to_go(batch.reward_BT, batch.mask_BT, discount))
    assume(len(returns) > 1 and statistics.stdev(returns) > 0.01)
    scaled_BT, deviation = NORMALIZATIONS["return_std"](batch.reward_BT, batch.mask_BT, discount)
    assert float(deviation) == pytest.approx(statistics.stdev(returns))
    scaled = valid_values(batch, scaled_BT)
    expected = [x / (float(deviation) + 1e-6) for x in valid_values(batch, batch.reward_BT)]
    assert scaled == pytest.approx(expected)


@given(batches())
def test_prefix_std_centres_the_rewards_and_divides_by_the_spread_of_the_prefix_values(batch):
    rewards = valid_values(batch, batch.reward_BT)
    prefixes = [
        sum(float(batch.reward_BT[i, s]) for s in batch.tokens(i) if s <= t)
        for i in batch.rows
        for t in batch.tokens(i)
    ]
    scale = max(statistics.pstdev(prefixes), 1e-6) if len(prefixes) > 1 else 1.0
    result_BT, reported = NORMALIZATIONS["prefix_std"](batch.reward_BT, batch.mask_BT, 1.0)
    assert float(reported) == pytest.approx(scale)
    mean = sum(rewards) / len(rewards)
    assert valid_values(batch, result_BT) == pytest.approx([(r - mean) / scale for r in rewards], rel=1e-6, abs=1e-7)
    assert not result_BT[~batch.mask_BT.bool()].any()


@pytest.mark.parametrize("name", sorted(NORMALIZATIONS))
@given(batch=batches(), seed=st.integers(0, 1000))
def test_statistics_are_those_of_the_global_batch_in_any_order(name, batch, seed):
    """Taken per rank, as in the original, the result would depend on the number of ranks."""
    scaled_BT, scale = NORMALIZATIONS[name](batch.reward_BT, batch.mask_BT, 1.0)
    order = orders(batch, seed)
    other_BT, other_scale = NORMALIZATIONS[name](batch.reward_BT[order], batch.mask_BT[order], 1.0)
    assert float(other_scale) == pytest.approx(float(scale))
    inside_BT = batch.mask_BT[order].bool()
    torch.testing.assert_close(other_BT[inside_BT], scaled_BT[order][inside_BT], atol=1e-6, rtol=1e-6)


def test_the_relative_scale_is_the_ratio_of_running_means_limited_and_resumed():
    scale = OutcomeRelativeScale(share=0.5, decay=0.8)
    # A step without spread is passed over.
    assert scale.update(0.0, 1.0) == 0.0 and scale.process_std is None
    assert scale.update(0.1, 1.0) == pytest.approx(0.5 * 1.0 / 0.1)
    assert scale.update(0.0, 1.0) == scale.update(0.1, 0.0) == pytest.approx(0.5 * 1.0 / 0.1)
    resumed = OutcomeRelativeScale(0.5, 0.8, process_std=scale.process_std, outcome_std=scale.outcome_std)
    # 0.8 * 0.1 + 0.2 * 0.2 = 0.12 and 0.8 * 1 + 0.2 * 0.5 = 0.9
    assert scale.update(0.2, 0.5) == resumed.update(0.2, 0.5) == pytest.approx(0.5 * 0.9 / 0.12)
    assert OutcomeRelativeScale(largest=10.0).update(1e-9, 1.0) == 10.0
