# SPDX-License-Identifier: Apache-2.0
"""PRIME's advantage: two sources, each centred by the others of its prompt, weighted, summed and whitened."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import batches

from prime_ext.algorithms.advantage import RewardSource, combine_sources, last_token_mask
from prime_ext.algorithms.leave_one_out import leave_one_out
from prime_ext.algorithms.returns import whiten

coefficients = st.sampled_from([0.3, 1.0, 5.0])


def centred_by_loops(batch, form):
    """Eq. 5 of the paper, and the released code's r * n / (n - 1) - sum_j m_j / (n - 1); 0 for a rollout alone."""
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
def test_rewards_are_centred_as_the_formulas_say(batch, form):
    result = leave_one_out(batch.reward_BT, batch.mask_BT, batch.group_B, form)
    torch.testing.assert_close(result, centred_by_loops(batch, form))


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="must be 'released' or 'paper', got 'mean'"):
        leave_one_out(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1, dtype=torch.int64), "mean")


@given(batches(), coefficients, coefficients, st.sampled_from(["paper", "released"]))
def test_equals_the_formula_with_coefficients_that_count(batch, outcome, process, form):
    last_BT = last_token_mask(batch.mask_BT)
    sources = {
        "outcome": RewardSource(batch.label_B[:, None] * last_BT, last_BT, outcome, form=form),
        "process": RewardSource(batch.reward_BT, batch.mask_BT, process, form=form),
    }
    advantage_BT, return_BT, per_source = combine_sources(sources, batch.mask_BT, batch.group_B)
    centred_BT, expected_BT = centred_by_loops(batch, form), torch.zeros_like(return_BT)
    for i in batch.rows:
        label, tokens = float(batch.label_B[i]), batch.tokens(i)
        others = [float(batch.label_B[j]) for j in batch.members(i) if j != i]
        for t in tokens:
            expected_BT[i, t] = process * sum(float(centred_BT[i, s]) for s in tokens if s >= t)
            expected_BT[i, t] += outcome * (label - sum(others) / len(others)) if others else 0.0
    torch.testing.assert_close(return_BT, expected_BT, atol=1e-8, rtol=1e-6)
    torch.testing.assert_close(advantage_BT, whiten(expected_BT, batch.mask_BT), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(sum(per_source.values()), return_BT)


@given(batches())
def test_the_last_token_mask_marks_the_last_valid_token_only(batch):
    for row, mask_T in enumerate(last_token_mask(batch.mask_BT)):
        assert mask_T.nonzero().flatten().tolist() == batch.tokens(row)[-1:]
