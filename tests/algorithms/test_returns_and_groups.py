# SPDX-License-Identifier: Apache-2.0
"""Returns, whitening, normalizations, groups, implicit rewards and guards, against loops."""

import itertools
import math
import statistics

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from rollout_batches import NAN, batches, orders, to_go

from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.implicit_reward import (
    compute_implicit_values,
    log_ratio,
    prefix_values,
    process_rewards,
)
from prime_ext.algorithms.prm_accuracy import PairCount, absolute_accuracy, count_pairs
from prime_ext.algorithms.prompt_filter import KEPT, TOO_EASY, TOO_HARD, AccuracyBand
from prime_ext.algorithms.reliability_gate import ReliabilityGate
from prime_ext.algorithms.returns import normalize_by_batch_max, return_to_go, whiten

discounts = st.sampled_from([1.0, 0.99, 0.5])


def return_by_loops(batch, discount):
    return batch.on_tokens(lambda i: to_go(batch.rewards(i), discount))


def valid_values(batch, value_BT):
    return value_BT[batch.mask_BT.bool()].tolist()


@given(batches(), discounts)
def test_return_steps_over_holes_and_ignores_padding(batch, discount):
    torch.testing.assert_close(
        return_to_go(batch.reward_BT, batch.mask_BT, discount), return_by_loops(batch, discount)
    )


@given(batches())
def test_whitened_valid_tokens_have_mean_zero_and_variance_one(batch):
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


# ---- normalizations ------------------------------------------------------------------------------


@given(
    batch=batches(),
    discount=discounts,
    floor=st.sampled_from([0.0, 2.0]),
    seed=st.integers(0, 1000),
)
def test_the_largest_return_is_that_of_the_global_batch(batch, discount, floor, seed):
    """A largest return per rank, as in the original, would depend on the number of ranks."""
    rewards = valid_values(batch, batch.reward_BT)
    returns = valid_values(batch, return_by_loops(batch, discount))
    expected = max(*map(abs, returns), floor)
    assume(expected > 1e-3)
    order = orders(batch, seed)
    scaled_BT, scale = normalize_by_batch_max(
        batch.reward_BT[order], batch.mask_BT[order], discount, floor
    )
    assert float(scale) == pytest.approx(expected)
    if floor == 0.0:
        assert float(
            normalize_by_batch_max(batch.reward_BT, batch.mask_BT, discount)[1]
        ) == pytest.approx(expected)
    back_BT = scaled_BT[torch.tensor(order).argsort()]
    wanted = [reward / (expected + 1e-6) for reward in rewards]
    assert valid_values(batch, back_BT) == pytest.approx(wanted, rel=1e-6, abs=1e-7)


# ---- filter and gate -----------------------------------------------------------------------------

BAND = AccuracyBand(lower=0.2, upper=0.8)


@pytest.mark.parametrize(
    "correct, verdict", [(0, TOO_HARD), (1, KEPT), (2, KEPT), (3, KEPT), (4, KEPT), (5, TOO_EASY)]
)
def test_the_bounds_are_inclusive_with_five_rollouts(correct, verdict):
    assert BAND.classify([1.0] * correct + [0.0] * (5 - correct), [False] * 5) == verdict


def test_a_mean_within_the_rounding_of_a_bound_is_kept():
    assert {BAND.classify([mean], [False]) for mean in (BAND.lower - 1e-6, BAND.upper + 1e-6)} == {
        KEPT
    }


def pairs(accuracy, total=10.0):
    return PairCount(accuracy * total, total)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 50)), max_size=8),
    st.floats(0, 0.99),
    st.floats(0, 1),
)
def test_the_running_accuracy_is_the_weighted_mean_over_all_batches(batches, decay, start):
    gate = ReliabilityGate(decay, start)
    for accuracy, total in batches:
        gate.update(pairs(accuracy, total))
    seen = [batch for batch in batches if batch[1]]
    if not seen:
        assert gate.average == start
        return
    weight = [
        (1 - decay) * decay ** (len(seen) - 1 - k) * total for k, (_, total) in enumerate(seen)
    ]
    mean = sum(w * accuracy for w, (accuracy, _) in zip(weight, seen, strict=True))
    first = decay ** len(seen) * seen[0][1]
    assert gate.average == pytest.approx((first * start + mean) / (first + sum(weight)), abs=1e-9)


def test_a_batch_without_pairs_leaves_the_gate_where_it_is():
    gate = ReliabilityGate()
    assert gate.update(PairCount(0.0, 0.0)) == 0.0 and gate.average == 0.5
    assert gate.update(pairs(1.0)) == gate.update(PairCount(0.0, 0.0)) == pytest.approx(0.2)


# ---- statistics of groups ------------------------------------------------------------------------


def with_garbage(batch):
    """Return labels of valid rows; NaN in padding, whose id may be that of a real prompt."""
    valid_B = batch.mask_BT.any(-1)
    return torch.where(valid_B, batch.label_B, NAN), PromptGroups.build(batch.group_B, valid_B)


@given(batches())
def test_sum_mean_and_standard_deviation(batch):
    label_B, groups = with_garbage(batch)
    for i in range(len(batch.group_B)):
        values = [float(batch.label_B[j]) for j in batch.members(i)] if i in batch.rows else []
        assert int(groups.size_B[i]) == len(values)
        assert float(groups.sum(label_B)[i]) == pytest.approx(sum(values))
        assert float(groups.mean(label_B)[i]) == pytest.approx(
            statistics.fmean(values) if values else 0.0
        )
        expected = statistics.stdev(values) if len(values) > 1 else 0.0
        assert float(groups.std(label_B)[i]) == pytest.approx(expected)


@given(batches())
def test_spread_shows_each_group_once(batch):
    label_B, groups = with_garbage(batch)
    spread_GN = groups.pad_groups(label_B, -1.0)
    seen = sorted(sorted(v for v in row if v >= 0) for row in spread_GN.tolist())
    numbers = {int(batch.group_B[i]) for i in batch.rows}
    expected = [
        [float(batch.label_B[i]) for i in batch.rows if int(batch.group_B[i]) == g] for g in numbers
    ]
    assert seen == sorted(sorted(values) for values in expected)


def test_a_batch_of_padding_has_no_groups():
    groups = PromptGroups.build(torch.tensor([3, 3]), torch.zeros(2, dtype=torch.bool))
    value_B = torch.tensor([NAN, 1.0])
    assert groups.n_groups == 0 and groups.size_B.tolist() == [0, 0]
    assert (
        groups.sum(value_B).tolist()
        == groups.mean(value_B).tolist()
        == groups.std(value_B).tolist()
        == [0.0, 0.0]
    )
    assert groups.pad_groups(value_B, 0.0).shape == (0, 0)


# ---- implicit rewards and accuracies -------------------------------------------------------------


betas = st.sampled_from([0.05, 1.0, 10.0])


def get_ratio(batch):
    """Return log-ratios of the batch's rewards, garbage included, to a reference of -1."""
    return log_ratio(batch.reward_BT, torch.full_like(batch.reward_BT, -1.0), batch.mask_BT)


@given(batches(), betas)
def test_rewards_are_scaled_log_ratios_and_values_their_running_sums(batch, beta):
    ratio_BT = get_ratio(batch)
    torch.testing.assert_close(
        ratio_BT, batch.on_tokens(lambda i: [r + 1.0 for r in batch.rewards(i)]).float()
    )
    assert torch.equal(process_rewards(ratio_BT, beta), beta * ratio_BT)
    sums_BT = batch.on_tokens(lambda i: list(itertools.accumulate(batch.rewards(i))))
    torch.testing.assert_close(prefix_values(batch.reward_BT, batch.mask_BT, beta), beta * sums_BT)
    # What was received before a token.
    before_BT = batch.on_tokens(lambda i: [0.0, *itertools.accumulate(batch.rewards(i)[:-1])])
    torch.testing.assert_close(compute_implicit_values(batch.reward_BT, batch.mask_BT), before_BT)


def test_low_precision_inputs_are_subtracted_in_float32():
    """Near -10 bfloat16 numbers are 0.06 apart: the difference must not be rounded again."""
    policy = torch.tensor([[-10.0]]).bfloat16()
    reference = torch.tensor([[-0.01]]).bfloat16()
    ratio_BT = log_ratio(policy, reference, torch.ones(1, 1))
    assert ratio_BT.dtype == torch.float32
    assert float(ratio_BT) == float(policy) - float(reference) != float(policy - reference)


def pairs_by_loops(score, label, group):
    right = total = 0.0
    for i in range(len(score)):
        for j in range(len(score)):
            if group[i] == group[j] and label[i] > label[j]:
                total += label[i] - label[j]
                right += (label[i] - label[j]) * (
                    (score[i] > score[j]) + 0.5 * (score[i] == score[j])
                )
    return right / total if total else None


@given(batches(padding=False), st.integers(0, 1000))
def test_pair_accuracy_equals_a_loop_over_pairs_in_any_order(batch, seed):
    score_B = get_ratio(batch).sum(-1).double().round()  # rounding makes ties
    expected = pairs_by_loops(score_B.tolist(), batch.label_B.tolist(), batch.group_B.tolist())
    order = orders(batch, seed)
    for rows in (list(range(len(order))), order):
        accuracy = count_pairs(score_B[rows], batch.label_B[rows], batch.group_B[rows]).accuracy
        assert accuracy == (None if expected is None else pytest.approx(expected))


def test_absolute_accuracy_counts_scores_on_the_right_side_of_zero():
    score_B = torch.tensor([2.0, -1.0, 0.0, 3.0])
    assert absolute_accuracy(score_B, torch.tensor([1.0, 0.0, 1.0, 0.2])) == 0.5
