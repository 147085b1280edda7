# SPDX-License-Identifier: Apache-2.0
"""Implicit step rewards as scores, accumulated, shaped and placed on tokens."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import NAN, batches, random_spans

from prime_ext.algorithms.accumulation import MODES, StepScore
from prime_ext.algorithms.chain_reward import ChainReward
from prime_ext.algorithms.process_shaping import CREDITS, REWARD_POSITIONS, ProcessShaping
from prime_ext.algorithms.returns import last_token_mask
from prime_ext.algorithms.shaping import SHAPES
from prime_ext.algorithms.steps import end_mask, step_spans

seeds = st.integers(0, 1000)
SIGMOID = StepScore("sigmoid")
PAPER = ChainReward(shape="weibull")


def test_golden_scores_of_summed_rewards():
    """sigmoid(1) = .731059, sigmoid(-2) = .119203, sigmoid(1 - 2) = .268941."""
    sum_BS, mask_BS = torch.tensor([[1.0, -2.0, NAN]]), torch.tensor([[1, 1, 0]])
    assert StepScore("none")(sum_BS, mask_BS).tolist() == [[1.0, -2.0, 0.0]]
    assert SIGMOID(sum_BS, mask_BS)[0].tolist() == pytest.approx([0.731059, 0.119203, 0.0], abs=5e-7)
    prefix = StepScore("prefix_sigmoid")(sum_BS, mask_BS)
    assert prefix[0].tolist() == pytest.approx([0.731059, 0.268941, 0.0], abs=5e-7)
    assert StepScore("sigmoid", 0.5)(2 * sum_BS, mask_BS)[0].tolist() == SIGMOID(sum_BS, mask_BS)[0].tolist()


def test_sums_that_are_not_finite_are_an_error_even_where_their_sigmoid_is_a_number():
    with pytest.raises(ValueError, match="step 2 of row 0 has the score inf, which is not finite"):
        SIGMOID(torch.tensor([[1.0, math.inf]]), torch.ones(1, 2))
    with pytest.raises(ValueError, match="step score 'tanh' is not one of none, sigmoid, prefix_sigmoid"):
        StepScore("tanh")(torch.zeros(1, 1), torch.ones(1, 1))


@pytest.mark.parametrize("reward_position", REWARD_POSITIONS)
@pytest.mark.parametrize("credit", CREDITS)
@given(batch=batches(padding=True), seed=seeds)
def test_wherever_it_is_paid_the_reward_of_a_chain_is_the_sum_of_what_is_paid(reward_position, credit, batch, seed):
    spans = random_spans(batch, seed)
    shaping = ProcessShaping("step", credit=credit, score=SIGMOID, chain=PAPER, reward_position=reward_position)
    paid_BT, source_BT = shaping(batch.reward_BT, batch.mask_BT, spans)
    where = {"last_token": last_token_mask(batch.mask_BT), "step_ends": end_mask(spans), "tokens": batch.mask_BT}
    assert torch.equal(source_BT.bool(), where[reward_position].bool()) and not paid_BT[~source_BT.bool()].any()
    for i in batch.rows:
        ends = spans.end_BS[i, spans.mask_BS[i]].tolist()
        tokens, scores, start = batch.tokens(i), [], 0
        for end in ends:
            inside = [t for t in tokens if start <= t <= end]
            scores.append(1 / (1 + math.exp(-sum(float(batch.reward_BT[i, t]) for t in inside))))
            start = end + 1
        n = len(ends)
        factor = 10.735 * 1.5 / 8 * math.sqrt(n / 8) * math.exp(-((n / 8) ** 1.5)) if n > 1 else 0.0
        assert float(paid_BT[i].sum()) == pytest.approx(math.prod(scores) ** (1 / n) * factor, abs=1e-6)


def test_shares_at_step_ends_are_equal_or_go_to_the_worst_step():
    spans = step_spans(torch.tensor([[0, 1, 1, 0]]), torch.ones(1, 4))
    reward_BT = torch.tensor([[0.5, 0.5, -2.0, 1.0]])
    common = {"score": SIGMOID, "chain": ChainReward(), "reward_position": "step_ends"}
    equal_BT, _ = ProcessShaping("step", **common)(reward_BT, torch.ones(1, 4), spans)
    total = float(equal_BT.sum())
    assert equal_BT[0].tolist() == pytest.approx([0.0, total / 3, total / 3, total / 3])
    worst_BT, _ = ProcessShaping("step", credit="min_form", **common)(reward_BT, torch.ones(1, 4), spans)
    # Scores sigmoid(1), sigmoid(-2), sigmoid(1).
    weights = [math.exp(-10 * one) for one in (0.731059, 0.119203, 0.731059)]
    assert worst_BT[0].tolist() == pytest.approx([0.0, *(total * w / sum(weights) for w in weights)], abs=1e-6)
    with pytest.raises(ValueError, match="reward_position 'middle' is not one of last_token, step_ends, tokens"):
        ProcessShaping("step", chain=ChainReward("mean"), reward_position="middle")(reward_BT, torch.ones(1, 4), spans)


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_every_combination_is_finite_for_empty_single_and_long_responses(mode, shape):
    mask_BT = torch.zeros(4, 800)
    mask_BT[1, 0], mask_BT[2, :3], mask_BT[3] = 1, 1, 1
    reward_BT = torch.where(mask_BT.bool(), 0.05 * torch.randn(4, 800, generator=torch.Generator().manual_seed(0)), NAN)
    spans = step_spans(torch.ones(4, 800), mask_BT)
    shaping = ProcessShaping("step", score=StepScore("prefix_sigmoid"), chain=ChainReward(mode, shape=shape))
    paid_BT, _ = shaping(reward_BT, mask_BT, spans)
    assert paid_BT.isfinite().all() and not paid_BT[:2].any() and float(paid_BT[2].sum()) > 0
    value = shaping.chain_value(reward_BT, spans)
    assert value.count_B.tolist() == [0, 1, 3, 800]
    torch.testing.assert_close(value.reward_B, paid_BT.sum(-1))
