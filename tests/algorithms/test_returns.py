# SPDX-License-Identifier: Apache-2.0
"""Discounted returns, whitening and batch-max normalisation against loops."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from rollout_batches import batches

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


@given(batches(), discounts)
def test_after_batch_max_the_largest_return_is_one(batch, discount):
    assume(return_by_loops(batch, discount).abs().max() > 0.01)
    scaled_BT, largest = normalize_by_batch_max(batch.reward_BT, batch.mask_BT, discount, epsilon=0.0)
    assert float(largest) == pytest.approx(float(return_by_loops(batch, discount).abs().max()))
    assert float(return_to_go(scaled_BT, batch.mask_BT, discount).abs().max()) == pytest.approx(1.0)


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
