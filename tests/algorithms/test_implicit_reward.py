# SPDX-License-Identifier: Apache-2.0
"""Implicit rewards r_t = beta * q_t and the losses and accuracies built on them."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import batches, orders

from prime_ext.algorithms.implicit_reward import implicit_values, log_ratio, prefix_values, process_rewards
from prime_ext.algorithms.prm_accuracy import absolute_accuracy, pair_accuracy

betas = st.sampled_from([0.05, 1.0, 10.0])


def ratio_of(batch):
    """The batch's rewards, garbage included, as log-probabilities against a reference of -1."""
    return log_ratio(batch.reward_BT, torch.full_like(batch.reward_BT, -1.0), batch.mask_BT)


@given(batches(), betas)
def test_rewards_and_values_are_beta_times_log_ratios_and_their_running_sums(batch, beta):
    ratio_BT = ratio_of(batch)
    torch.testing.assert_close(ratio_BT, batch.on_tokens(lambda i: [r + 1.0 for r in batch.rewards(i)]).float())
    assert torch.equal(process_rewards(ratio_BT, beta), beta * ratio_BT)
    sums_BT = batch.on_tokens(lambda i: list(itertools.accumulate(batch.rewards(i))))
    torch.testing.assert_close(prefix_values(batch.reward_BT, batch.mask_BT, beta), beta * sums_BT)
    # What was received before a token.
    before_BT = batch.on_tokens(lambda i: [0.0, *itertools.accumulate(batch.rewards(i)[:-1])])
    torch.testing.assert_close(implicit_values(batch.reward_BT, batch.mask_BT), before_BT)


def test_low_precision_inputs_are_subtracted_in_float32():
    """Near -10 neighbouring bfloat16 numbers are 0.06 apart: the difference must not be rounded a second time."""
    policy, reference = torch.tensor([[-10.0]]).bfloat16(), torch.tensor([[-0.01]]).bfloat16()
    ratio_BT = log_ratio(policy, reference, torch.ones(1, 1))
    assert ratio_BT.dtype == torch.float32
    assert float(ratio_BT) == float(policy) - float(reference) != float(policy - reference)


def pairs_by_loops(score, label, group):
    right = total = 0.0
    for i in range(len(score)):
        for j in range(len(score)):
            if group[i] == group[j] and label[i] > label[j]:
                total += label[i] - label[j]
                right += (label[i] - label[j]) * ((score[i] > score[j]) + 0.5 * (score[i] == score[j]))
    return right / total if total else None


@given(batches(padding=False), st.integers(0, 1000))
def test_pair_accuracy_equals_a_loop_over_pairs_in_any_order(batch, seed):
    score_B = ratio_of(batch).sum(-1).double().round()  # rounding makes ties
    expected = pairs_by_loops(score_B.tolist(), batch.label_B.tolist(), batch.group_B.tolist())
    order = orders(batch, seed)
    for rows in (list(range(len(order))), order):
        accuracy = pair_accuracy(score_B[rows], batch.label_B[rows], batch.group_B[rows])
        assert accuracy == (None if expected is None else pytest.approx(expected))


def test_an_untrained_prm_is_a_coin_and_a_batch_without_pairs_has_no_accuracy():
    group_B = torch.tensor([0, 0, 1])
    tied = torch.zeros(3), torch.tensor([1.0, 0.0, 1.0]), group_B
    assert pair_accuracy(*tied) == 0.5
    assert pair_accuracy(torch.rand(3), torch.tensor([1.0, 1.0, 0.0]), group_B) is None


def test_absolute_accuracy_counts_scores_on_the_right_side_of_zero():
    score_B = torch.tensor([2.0, -1.0, 0.0, 3.0])
    assert absolute_accuracy(score_B, torch.tensor([1.0, 0.0, 1.0, 0.2])) == 0.5
