# SPDX-License-Identifier: Apache-2.0
"""The leave-one-out baseline against loops over the formulas of the paper and of the released code."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import batches, orders

from prime_ext.algorithms.leave_one_out import group_sizes, leave_one_out


def by_loops(batch, form):
    """Eq. 5 of the paper, and the released code's r * n / (n - 1) - sum_j m_j / (n - 1)."""
    result = torch.zeros_like(batch.reward_BT)
    for i in batch.rows:
        members = batch.members(i)
        n = len(members)
        if n == 1:
            continue
        mean = {j: sum(float(batch.reward_BT[j, t]) for t in batch.tokens(j)) / len(batch.tokens(j)) for j in members}
        for t in batch.tokens(i):
            reward = float(batch.reward_BT[i, t])
            if form == "paper":
                result[i, t] = reward - sum(mean[j] for j in members if j != i) / (n - 1)
            else:
                result[i, t] = reward * n / (n - 1) - sum(mean[j] for j in members) / (n - 1)
    return result


@given(batches(), st.sampled_from(["paper", "released"]))
def test_equals_the_formula(batch, form):
    result = leave_one_out(batch.reward_BT, batch.mask_BT, batch.group_B, form)
    torch.testing.assert_close(result, by_loops(batch, form))


@given(batches(), st.sampled_from(["paper", "released"]), st.integers(0, 1000))
def test_row_order_and_the_numbering_of_groups_do_not_matter(batch, form, seed):
    order = orders(batch, seed)
    other = batch.permuted(order)
    result = leave_one_out(batch.reward_BT, batch.mask_BT, batch.group_B, form)
    renumbered = leave_one_out(other.reward_BT, other.mask_BT, 1000 - other.group_B, form)
    torch.testing.assert_close(renumbered, result[order])


@given(batches(min_group=2))
def test_both_forms_agree_on_the_mean_over_a_response_with_the_mean_of_the_others(batch):
    means = {i: float(batch.reward_BT[i, batch.tokens(i)].mean()) for i in batch.rows}
    for form in ("paper", "released"):
        result = leave_one_out(batch.reward_BT, batch.mask_BT, batch.group_B, form)
        for i in batch.rows:
            others = [means[j] for j in batch.members(i) if j != i]
            mean = float(result[i, batch.tokens(i)].mean())
            assert mean == pytest.approx(means[i] - sum(others) / len(others), abs=1e-9)


@given(batches(holes=False))
def test_rows_of_a_group_sum_to_zero_on_average(batch):
    """The baseline takes nothing from the group as a whole."""
    result = leave_one_out(batch.reward_BT, batch.mask_BT, batch.group_B)
    means = {i: float(result[i, batch.tokens(i)].mean()) for i in batch.rows}
    for i in batch.rows:
        assert sum(means[j] for j in batch.members(i)) == pytest.approx(0.0, abs=1e-8)


@given(batches())
def test_a_rollout_alone_in_its_group_and_padding_receive_exactly_zero(batch):
    result = leave_one_out(batch.reward_BT, batch.mask_BT, batch.group_B)
    for i in range(len(batch.group_B)):
        if i not in batch.rows or len(batch.members(i)) == 1:
            assert not result[i].any()


@given(batches())
def test_group_sizes_count_valid_rows_only(batch):
    valid_B = batch.mask_BT.sum(-1) > 0
    sizes = group_sizes(batch.group_B, valid_B).tolist()
    assert sizes == [len(batch.members(i)) if i in batch.rows else 0 for i in range(len(batch.group_B))]


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="must be 'released' or 'paper', got 'mean'"):
        leave_one_out(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1, dtype=torch.int64), "mean")
