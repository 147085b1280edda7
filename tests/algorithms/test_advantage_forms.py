# SPDX-License-Identifier: Apache-2.0
"""SPRO, segments and PROF, against loops over their definitions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import NAN, batches

from prime_ext.algorithms.advantage_forms import (
    low_probability_cuts,
    masked_step_advantage,
    segment_advantage,
)
from prime_ext.algorithms.prof_selection import process_consistency, select_consistent

# ---- SPRO --------------------------------------------------------------------------------------------------------


@given(batches())
def test_spro_compares_the_cumulative_log_ratio_with_the_rollouts_alive_at_the_same_position(batch):
    result_BT = masked_step_advantage(batch.reward_BT, batch.mask_BT, batch.group_B)
    value = {
        (i, t): sum(float(batch.reward_BT[i, s]) for s in batch.tokens(i) if s <= t)
        for i in batch.rows
        for t in batch.tokens(i)
    }
    expected_BT = torch.zeros_like(result_BT)
    for i, t in value:
        alive = [j for j in batch.members(i) if (j, t) in value]
        if len(alive) > 1:
            expected_BT[i, t] = value[i, t] - sum(value[j, t] for j in alive) / len(alive)
    torch.testing.assert_close(result_BT, expected_BT)


# ---- segments ----------------------------------------------------------------------------------------------------


def test_tokens_before_the_first_cut_and_rows_without_cuts_receive_zero():
    mask_BT = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    cut_BC, cut_mask_BC = torch.tensor([[1, 2], [0, 0]]), torch.tensor([[True, True], [False, False]])
    value_BC = torch.tensor([[0.25, 0.5], [NAN, NAN]])
    result_BT = segment_advantage(value_BC, cut_BC, cut_mask_BC, torch.tensor([1.0, 1.0]), mask_BT)
    assert result_BT.tolist() == [[0.0, 0.25, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0]]


def test_spo_cuts_before_every_nth_token_that_the_policy_was_not_sure_of():
    probability_BT = torch.tensor([[0.5, 0.95, 0.9, 0.89, 0.1, 0.2]])
    mask_BT = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, 0.0]])
    assert low_probability_cuts(probability_BT, mask_BT, every=2).tolist() == [[True, False, False, False, True, False]]


# ---- PROF --------------------------------------------------------------------------------------------------------


def select_by_loops(consistency, label, group, valid, remove):
    keep = list(valid)
    for number in {g for g, v in zip(group, valid, strict=True) if v}:
        rows = [i for i in range(len(group)) if valid[i] and group[i] == number]
        correct = sorted((i for i in rows if label[i] > 0.5), key=lambda i: consistency[i])
        wrong = sorted((i for i in rows if label[i] <= 0.5), key=lambda i: consistency[i])
        share = min(remove, round((len(correct) - len(wrong) + remove) / 2))
        dropped = correct[:share] if share > 0 else []
        dropped = dropped + wrong[: remove - len(dropped)]
        for i in dropped:
            keep[i] = False
    return keep


@given(batches(max_group=8), st.integers(0, 6), st.integers(0, 1000))
def test_prof_drops_the_least_consistent_of_each_class_and_balances_the_classes(batch, remove, seed):
    valid_B = batch.mask_BT.any(-1)
    generator = torch.Generator().manual_seed(seed)
    consistency_B = torch.randint(-2, 3, valid_B.shape, generator=generator).double()  # integers make ties
    keep_B = select_consistent(consistency_B, batch.label_B, batch.group_B, valid_B, remove)
    arguments = (consistency_B, batch.label_B, batch.group_B, valid_B)
    assert keep_B.tolist() == select_by_loops(*(x.tolist() for x in arguments), remove)


def test_consistency_is_high_for_good_steps_of_correct_and_bad_steps_of_wrong_responses():
    score_BS = torch.tensor([[0.9, 0.7], [0.2, NAN], [0.2, 0.6], [NAN, NAN]])
    mask_BS = torch.tensor([[True, True], [True, False], [True, True], [False, False]])
    label_B = torch.tensor([1.0, 0.0, 1.0, 0.0])
    average = (0.9 + 0.7 + 0.2 + 0.2 + 0.6) / 5
    expected = [2 * (0.8 - average), -2 * (0.2 - average), 2 * (0.4 - average), 0.0]
    assert process_consistency(score_BS, mask_BS, label_B).tolist() == pytest.approx(expected)
    expected[1] -= 0.3
    assert process_consistency(score_BS, mask_BS, label_B, length_penalty=0.3).tolist() == pytest.approx(expected)
