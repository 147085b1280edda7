# SPDX-License-Identifier: Apache-2.0
"""PRIME's advantage: two sources, each centred, discounted and weighted, summed and whitened."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import NAN, batches, orders

from prime_ext.algorithms.advantage import RewardSource, combine_sources, last_token_mask
from prime_ext.algorithms.returns import whiten

coefficients = st.sampled_from([0.3, 1.0, 5.0])


def outcome_source(batch, coefficient=1.0, **options):
    last_BT = last_token_mask(batch.mask_BT)
    return RewardSource(batch.label_B[:, None] * last_BT, last_BT, coefficient, **options)


def process_source(batch, coefficient=1.0, **options):
    return RewardSource(batch.reward_BT, batch.mask_BT, coefficient, **options)


def released_by_loops(batch, outcome, process):
    """The released code (`compute_rloo_returns`) written out token by token, with coefficients, before whitening."""
    result = torch.zeros_like(batch.reward_BT)
    for i in batch.rows:
        members = batch.members(i)
        n = len(members)
        if n == 1:
            continue
        label = {j: float(batch.label_B[j]) for j in members}
        mean = {j: sum(float(batch.reward_BT[j, t]) for t in batch.tokens(j)) / len(batch.tokens(j)) for j in members}
        for t in batch.tokens(i):
            future = [s for s in batch.tokens(i) if s >= t]
            part = sum(float(batch.reward_BT[i, s]) * n / (n - 1) - sum(mean.values()) / (n - 1) for s in future)
            result[i, t] = outcome * (label[i] - sum(label[j] for j in members if j != i) / (n - 1)) + process * part
    return result


@given(batches(), coefficients, coefficients)
def test_equals_the_released_formula_with_coefficients_that_count(batch, outcome, process):
    sources = {"outcome": outcome_source(batch, outcome), "process": process_source(batch, process)}
    advantage_BT, return_BT, per_source = combine_sources(sources, batch.mask_BT, batch.group_B)
    expected_BT = released_by_loops(batch, outcome, process)
    torch.testing.assert_close(return_BT, expected_BT, atol=1e-8, rtol=1e-6)
    torch.testing.assert_close(advantage_BT, whiten(expected_BT, batch.mask_BT), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(sum(per_source.values()), return_BT)


@given(batches())
def test_the_outcome_advantage_is_the_outcome_minus_the_mean_of_the_others(batch):
    advantage_BT, _, _ = combine_sources({"outcome": outcome_source(batch)}, batch.mask_BT, batch.group_B, False)
    for i in batch.rows:
        others = [float(batch.label_B[j]) for j in batch.members(i) if j != i]
        expected = float(batch.label_B[i]) - sum(others) / len(others) if others else 0.0
        assert advantage_BT[i, batch.tokens(i)].tolist() == pytest.approx([expected] * len(batch.tokens(i)))


@given(batches(min_group=2))
def test_outcome_only_without_whitening_is_verls_rloo(batch):
    from verl.trainer.ppo.core_algos import compute_rloo_outcome_advantage

    rows = batch.rows
    batch = batch.permuted(rows)
    advantage_BT, _, _ = combine_sources({"outcome": outcome_source(batch)}, batch.mask_BT, batch.group_B, False)
    reward_BT = batch.label_B[:, None] * last_token_mask(batch.mask_BT)
    verl_BT, _ = compute_rloo_outcome_advantage(reward_BT, batch.mask_BT, np.array(batch.group_B.tolist()))
    torch.testing.assert_close(advantage_BT, verl_BT)


@given(batches(), st.integers(0, 1000), st.sampled_from(["released", "paper"]), st.sampled_from([1.0, 0.9]))
def test_nothing_depends_on_row_order_group_numbers_or_padding(batch, seed, form, discount):
    def advantage(part, group_B):
        sources = {
            "outcome": outcome_source(part, form=form, discount=discount),
            "process": process_source(part, form=form, discount=discount),
        }
        return combine_sources(sources, part.mask_BT, group_B)[0]

    reference_BT = advantage(batch, batch.group_B)
    order = orders(batch, seed)
    other = batch.permuted(order)
    torch.testing.assert_close(advantage(other, 77 - other.group_B), reference_BT[order])
    without_padding = batch.permuted(batch.rows)
    torch.testing.assert_close(advantage(without_padding, without_padding.group_B), reference_BT[batch.rows])
    assert advantage(batch, batch.group_B).isfinite().all()


@given(batches(min_group=2))
def test_a_source_with_coefficient_zero_is_left_out_whatever_it_holds(batch):
    broken = RewardSource(torch.full_like(batch.reward_BT, NAN), batch.mask_BT, 0.0)
    alone = combine_sources({"outcome": outcome_source(batch)}, batch.mask_BT, batch.group_B)
    both = combine_sources({"outcome": outcome_source(batch), "process": broken}, batch.mask_BT, batch.group_B)
    torch.testing.assert_close(both[0], alone[0])
    assert set(both[2]) == {"outcome"}


def test_whitening_does_not_cancel_the_ratio_of_the_coefficients():
    """In the original both coefficients were read and thrown away; a common factor alone may cancel."""
    group_B, mask_BT = torch.zeros(2, dtype=torch.int64), torch.ones(2, 2)
    last_BT = last_token_mask(mask_BT)
    process_BT = torch.tensor([[0.3, -0.1], [0.2, 0.4]])

    def advantage(outcome, process):
        sources = {
            "outcome": RewardSource(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), last_BT, outcome),
            "process": RewardSource(process_BT, mask_BT, process),
        }
        return combine_sources(sources, mask_BT, group_B)[0]

    torch.testing.assert_close(advantage(5.0, 5.0), advantage(1.0, 1.0))
    assert (advantage(1.0, 5.0) - advantage(1.0, 1.0)).abs().max() > 0.1


def test_all_coefficients_zero_is_refused():
    source = RewardSource(torch.ones(2, 2), torch.ones(2, 2), 0.0)
    with pytest.raises(ValueError, match="at least one must count"):
        combine_sources({"outcome": source}, torch.ones(2, 2), torch.zeros(2, dtype=torch.int64))


@given(batches())
def test_the_last_token_mask_marks_the_last_valid_token_only(batch):
    for row, mask_T in enumerate(last_token_mask(batch.mask_BT)):
        assert mask_T.nonzero().flatten().tolist() == batch.tokens(row)[-1:]
