# SPDX-License-Identifier: Apache-2.0
"""Granularity of process rewards, prefix values and redistribution, against loops and known values."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import batches

from prime_ext.algorithms.advantage import RewardSource, combine_sources, last_token_mask
from prime_ext.algorithms.process_reward import (
    implicit_values,
    prefix_values,
    redistribute,
)

betas = st.sampled_from([0.05, 1.0, 10.0])


def q_of(batch, i):
    return [float(batch.reward_BT[i, t]) for t in batch.tokens(i)]


def on_tokens(batch, values_of_row):
    """A ``(B, T)`` tensor with the given list of values at the valid tokens of each row."""
    result_BT = torch.zeros_like(batch.reward_BT)
    for i in batch.rows:
        result_BT[i, batch.tokens(i)] = torch.tensor(values_of_row(i), dtype=torch.float64)
    return result_BT


@given(batches(), betas)
def test_prefix_values_are_running_sums_and_running_means(batch, beta):
    value_BT, normalized_BT = prefix_values(batch.reward_BT, batch.mask_BT, beta)
    sums = on_tokens(batch, lambda i: [beta * sum(q_of(batch, i)[: k + 1]) for k in range(len(q_of(batch, i)))])
    torch.testing.assert_close(value_BT, sums)
    counts = on_tokens(batch, lambda i: [float(k + 1) for k in range(len(q_of(batch, i)))])
    torch.testing.assert_close(normalized_BT, sums / counts.clamp_min(1))


@given(batches())
def test_implicit_values_are_the_rewards_received_so_far(batch):
    values_BT = implicit_values(batch.reward_BT, batch.mask_BT)
    expected = on_tokens(batch, lambda i: [sum(q_of(batch, i)[:k]) for k in range(len(q_of(batch, i)))])
    torch.testing.assert_close(values_BT, expected)


@given(batches())
def test_the_prm_as_value_function_is_the_outcome_minus_what_was_received_so_far(batch):
    """The third variant of PRIME's ablation of value models: r_o - v(y_<t), with the outcome at every token."""
    last_BT = last_token_mask(batch.mask_BT)
    source = RewardSource(
        batch.label_B[:, None] * last_BT,
        last_BT,
        estimator="prm_value",
        value_BT=implicit_values(batch.reward_BT, batch.mask_BT),
    )
    advantage_BT = combine_sources({"outcome": source}, batch.mask_BT, batch.group_B, None)[0]
    expected = on_tokens(
        batch, lambda i: [float(batch.label_B[i]) - sum(q_of(batch, i)[:k]) for k in range(len(q_of(batch, i)))]
    )
    torch.testing.assert_close(advantage_BT, expected)


@given(batches(), st.sampled_from(["uniform", "last"]))
def test_redistributed_rewards_of_a_response_sum_to_zero(batch, where):
    shifted_BT = redistribute(batch.reward_BT, batch.mask_BT, where)
    for i in batch.rows:
        q, tokens = q_of(batch, i), batch.tokens(i)
        shift = [sum(q) / len(q)] * len(q) if where == "uniform" else [0.0] * (len(q) - 1) + [sum(q)]
        assert shifted_BT[i, tokens].tolist() == pytest.approx([a - b for a, b in zip(q, shift, strict=True)])
        assert float(shifted_BT[i].sum()) == pytest.approx(0.0, abs=1e-9)
    assert not shifted_BT[~batch.mask_BT.bool()].any()


def test_an_unknown_redistribution_is_refused():
    with pytest.raises(ValueError, match="must be 'uniform' or 'last', got 'first'"):
        redistribute(torch.ones(1, 1), torch.ones(1, 1), "first")
