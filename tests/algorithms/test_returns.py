# SPDX-License-Identifier: Apache-2.0
"""Discounted returns, whitening and batch-max normalisation against loops."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from rollout_batches import batches, orders

from prime_ext.algorithms.returns import normalize_by_batch_max, return_to_go, whiten

discounts = st.sampled_from([1.0, 0.99, 0.5])


def return_by_loops(batch, discount):
    result = torch.zeros_like(batch.reward_BT)
    for i in batch.rows:
        running = 0.0
        for t in reversed(batch.tokens(i)):
            running = float(batch.reward_BT[i, t]) + discount * running
            result[i, t] = running
    return result


@given(batches(), discounts)
def test_return_steps_over_holes_and_ignores_padding(batch, discount):
    torch.testing.assert_close(return_to_go(batch.reward_BT, batch.mask_BT, discount), return_by_loops(batch, discount))


def test_a_hole_is_not_discounted():
    reward_BT, mask_BT = torch.tensor([[0.0, 100.0, 1.0]]), torch.tensor([[1.0, 0.0, 1.0]])
    assert return_to_go(reward_BT, mask_BT, 0.5).tolist() == [[0.5, 0.0, 1.0]]


@given(batches(), discounts)
def test_after_batch_max_the_largest_return_is_one(batch, discount):
    assume(return_by_loops(batch, discount).abs().max() > 0.01)
    scaled_BT, largest = normalize_by_batch_max(batch.reward_BT, batch.mask_BT, discount, epsilon=0.0)
    assert float(largest) == pytest.approx(float(return_by_loops(batch, discount).abs().max()))
    assert float(return_to_go(scaled_BT, batch.mask_BT, discount).abs().max()) == pytest.approx(1.0)


@given(batches(padding=False), st.integers(0, 1000))
def test_batch_max_is_global_so_that_row_order_does_not_matter_but_a_shard_alone_would(batch, seed):
    order = orders(batch, seed)
    scaled_BT, largest = normalize_by_batch_max(batch.reward_BT, batch.mask_BT)
    other_BT, other_largest = normalize_by_batch_max(batch.reward_BT[order], batch.mask_BT[order])
    torch.testing.assert_close(other_BT, scaled_BT[order], equal_nan=True)
    # The maximum of the shards' maxima is the batch's: what ranks would have to exchange.
    half = len(order) // 2
    shards = [rows for rows in (order[:half], order[half:]) if rows]
    shard_maxima = [normalize_by_batch_max(batch.reward_BT[rows], batch.mask_BT[rows])[1] for rows in shards]
    assert float(largest) == float(other_largest) == float(max(shard_maxima))


def test_rewards_of_an_untrained_prm_stay_zero():
    scaled_BT, largest = normalize_by_batch_max(torch.zeros(2, 3), torch.ones(2, 3))
    assert largest == 0 and not scaled_BT.any()


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


def test_whitening_equals_verls():
    from verl.utils.torch_functional import masked_whiten

    value_BT, mask_BT = torch.randn(6, 5, dtype=torch.float64), (torch.rand(6, 5) < 0.7).double()
    torch.testing.assert_close(whiten(value_BT, mask_BT), masked_whiten(value_BT, mask_BT) * mask_BT)
