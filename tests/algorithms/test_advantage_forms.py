# SPDX-License-Identifier: Apache-2.0
"""SPRO, segments and vines, iStar and PROF, against loops over their definitions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import NAN, batches, orders

from prime_ext.algorithms.advantage_forms import (
    low_probability_cuts,
    masked_step_advantage,
    probability_mask,
    segment_advantage,
    trajectory_step_advantage,
    vine_cuts,
)
from prime_ext.algorithms.prof_selection import process_consistency, select_consistent
from prime_ext.algorithms.steps import step_spans

# ---- SPRO --------------------------------------------------------------------------------------------------------


@given(batches(), st.sampled_from([0.1, 1.0]))
def test_spro_compares_the_cumulative_log_ratio_with_the_rollouts_alive_at_the_same_position(batch, beta):
    result_BT = masked_step_advantage(batch.reward_BT, batch.mask_BT, batch.group_B, beta)
    value = {
        (i, t): beta * sum(float(batch.reward_BT[i, s]) for s in batch.tokens(i) if s <= t)
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


@given(batches(holes=False, padding=False), st.integers(0, 1000))
def test_a_segment_receives_the_rise_of_the_value_from_its_start_to_its_end(batch, seed):
    generator = torch.Generator().manual_seed(seed)
    expected_BT, cuts = torch.zeros_like(batch.reward_BT), []
    n_tokens = batch.mask_BT.shape[1]
    for i in range(len(batch.group_B)):
        chosen = [t for t in batch.tokens(i) if float(torch.rand(1, generator=generator)) < 0.4]
        values = torch.rand(len(chosen), generator=generator).tolist()
        cuts.append((chosen, values))
        ends = [*values[1:], float(batch.label_B[i])]
        for k, start in enumerate(chosen):
            stop = chosen[k + 1] if k + 1 < len(chosen) else len(batch.tokens(i))
            expected_BT[i, start:stop] = ends[k] - values[k]
    filled = [
        ([*c, *[3] * (n_tokens - len(c))], [*v, *[NAN] * (n_tokens - len(v))], [k < len(c) for k in range(n_tokens)])
        for c, v in cuts
    ]
    cut_BC, value_BC, mask_BC = (torch.tensor(column) for column in zip(*filled, strict=True))
    result_BT = segment_advantage(value_BC.double(), cut_BC, mask_BC, batch.label_B, batch.mask_BT)
    torch.testing.assert_close(result_BT, expected_BT, atol=1e-6, rtol=1e-6)


def test_tokens_before_the_first_cut_and_rows_without_cuts_receive_zero():
    mask_BT = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    cut_BC, cut_mask_BC = torch.tensor([[1, 2], [0, 0]]), torch.tensor([[True, True], [False, False]])
    value_BC = torch.tensor([[0.25, 0.5], [NAN, NAN]])
    result_BT = segment_advantage(value_BC, cut_BC, cut_mask_BC, torch.tensor([1.0, 1.0]), mask_BT)
    assert result_BT.tolist() == [[0.0, 0.25, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0]]


def test_cuts_at_the_steps_are_vineppo_whose_advantages_sum_to_outcome_minus_value_of_the_prompt():
    spans = step_spans(torch.tensor([[0, 1, 0, 1, 0]]), torch.ones(1, 5))
    cut_BS, mask_BS = vine_cuts(spans)
    assert cut_BS.tolist() == [[0, 2, 4]]
    value_BS = torch.tensor([[0.5, 0.75, 0.25]])
    result_BT = segment_advantage(value_BS, cut_BS, mask_BS, torch.tensor([1.0]), torch.ones(1, 5))
    assert result_BT.tolist() == [[0.25, 0.25, -0.5, -0.5, 0.75]]
    assert float(result_BT[0, [0, 2, 4]].sum()) == 1.0 - 0.5


def test_spo_trains_unsure_tokens_only_and_cuts_before_every_fifth_of_them():
    probability_BT = torch.tensor([[0.5, 0.95, 0.9, 0.89, 0.1, 0.2]])
    mask_BT = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, 0.0]])
    assert probability_mask(probability_BT, mask_BT).tolist() == [[True, False, False, True, True, False]]
    assert low_probability_cuts(probability_BT, mask_BT, every=2).tolist() == [[True, False, False, False, True, False]]


# ---- iStar -------------------------------------------------------------------------------------------------------


@given(batches(), st.integers(0, 1000))
def test_istar_compares_a_step_with_all_other_steps_of_the_task(batch, seed):
    """The released code compares with the first step of each trajectory only."""
    reward_B = torch.where(batch.mask_BT.any(-1), 4.0 * batch.label_B - 1.0, NAN)
    result_BT = trajectory_step_advantage(reward_B, batch.mask_BT, batch.group_B)
    largest = max(abs(float(reward_B[i])) for i in batch.rows) + 1e-6
    for i in batch.rows:
        others = [float(reward_B[j]) / largest for j in batch.members(i) if j != i]
        expected = float(reward_B[i]) / largest - sum(others) / len(others) if others else 0.0
        assert result_BT[i, batch.tokens(i)].tolist() == pytest.approx([expected] * len(batch.tokens(i)))
    assert not result_BT[~batch.mask_BT.bool()].any()
    order = orders(batch, seed)
    moved_BT = trajectory_step_advantage(reward_B[order], batch.mask_BT[order], batch.group_B[order])
    torch.testing.assert_close(moved_BT, result_BT[order])


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


def test_removing_as_many_as_there_are_may_keep_none():
    label_B, valid_B = torch.tensor([1.0, 0.0]), torch.ones(2, dtype=torch.bool)
    assert not select_consistent(torch.zeros(2), label_B, torch.zeros(2), valid_B, 2).any()


def test_consistency_is_high_for_good_steps_of_correct_and_bad_steps_of_wrong_responses():
    score_BS = torch.tensor([[0.9, 0.7], [0.2, NAN], [0.2, 0.6], [NAN, NAN]])
    mask_BS = torch.tensor([[True, True], [True, False], [True, True], [False, False]])
    label_B = torch.tensor([1.0, 0.0, 1.0, 0.0])
    average = (0.9 + 0.7 + 0.2 + 0.2 + 0.6) / 5
    expected = [2 * (0.8 - average), -2 * (0.2 - average), 2 * (0.4 - average), 0.0]
    assert process_consistency(score_BS, mask_BS, label_B).tolist() == pytest.approx(expected)
    expected[1] -= 0.3
    assert process_consistency(score_BS, mask_BS, label_B, length_penalty=0.3).tolist() == pytest.approx(expected)
