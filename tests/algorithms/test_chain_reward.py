# SPDX-License-Identifier: Apache-2.0
"""Accumulated score times length factor: the rewards of PSPO-WRS, of its predecessor and of the released code."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.algorithms.chain_reward import ChainReward, break_even_filler
from prime_ext.algorithms.shaping import SHAPES, weibull

PAPER = ChainReward(shape="weibull")
RELEASED = ChainReward(power=2.0, shape="released")
PREDECESSOR = ChainReward(first_weight=0.2, shape="gaussian")
UNSHAPED = ChainReward()


def chain(*scores):
    return torch.tensor([scores], dtype=torch.float64), torch.ones(1, len(scores))


@pytest.mark.parametrize(
    ("reward", "scores", "expected"),
    [
        # Equal steps: section 1.4 of the notes on the method.
        (PAPER, [0.9] * 2, 0.799335),
        (RELEASED, [0.9] * 2, 2.201808),
        (PAPER, [0.9] * 20, 0.054994),
        (RELEASED, [0.9] * 20, 29.644570),
        (PAPER, [0.1] * 5, 0.097086),
        (RELEASED, [0.1] * 5, 0.066859),
        (RELEASED, [0.21159] * 12, 0.330810),
        # (0.2 * 0.9 * 0.8 * 0.7)^(1/3) * 0.880163
        (PREDECESSOR, [0.9, 0.8, 0.7], 0.409622),
        (UNSHAPED, [0.9] * 1000, 0.9),
        (PAPER, [0.9] * 1000, 0.0),
        (PREDECESSOR, [0.9] * 1000, 0.0),
    ],
)
def test_golden_rewards(reward, scores, expected):
    assert float(reward(*chain(*scores)).reward_B) == pytest.approx(expected, abs=5e-7)


def test_all_parts_of_the_value_are_given():
    score_BS = torch.tensor([[0.5, 0.5, 0.5], [0.25, 1.0, math.nan]])
    value = PAPER(score_BS, torch.tensor([[1, 1, 1], [1, 1, 0]]))
    assert value.count_B.tolist() == [3, 2] and value.score_B.tolist() == pytest.approx([0.5, 0.5])
    assert value.factor_B.tolist() == pytest.approx([0.979688, 0.888150])
    torch.testing.assert_close(value.reward_B, value.score_B * value.factor_B)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_chain_of_one_step_is_worth_0_or_is_valued_like_others_and_one_of_none_is_worth_0(shape):
    score_BS, mask_BS = torch.full((2, 1), 0.5), torch.tensor([[1], [0]])
    assert ChainReward(shape=shape)(score_BS, mask_BS).reward_B.tolist() == [0.0, 0.0]
    kept = ChainReward(shape=shape, single_step="keep")(score_BS, mask_BS)
    assert float(kept.reward_B[0]) > 0 and float(kept.reward_B[1]) == 0.0
    if shape == "weibull":
        assert float(kept.reward_B[0]) == pytest.approx(0.5 * 0.680871, abs=5e-7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ChainReward(shape="cosine")(*chain(0.5, 0.5)), "shape 'cosine' is not one of none, weibull"),
        (lambda: ChainReward(single_step="half")(*chain(0.5)), "single_step 'half' is not one of zero, keep"),
        (lambda: ChainReward("sum", power=2.0)(*chain(-0.5, -0.5)), "power=2 of a negative accumulated score, -1"),
        (lambda: ChainReward("none", shape="released").length_factor(torch.tensor([3])), "'released' reads an accumu"),
        (lambda: PAPER(*chain(math.nan, 0.5)), "step 1 of row 0 has the score nan"),
    ],
)
def test_wrong_choices_are_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ---- what a filler step has to score to pay ----------------------------------------------------------------------

# Steps before: the released code for chains of score .9 and .97, the paper for .9 and .6; relative to the score.
FILLER = {
    2: (0.472, 0.472, 0.745, 0.745),
    4: (0.831, 0.779, math.nan, 1.156),
    20: (0.692, 0.350, math.nan, math.nan),
}


def break_even(reward, score, steps):
    value = break_even_filler(reward.value, torch.tensor(score, dtype=torch.float64), torch.tensor(steps))
    return float(value) / score


@pytest.mark.parametrize("steps", FILLER)
def test_golden_scores_at_which_a_filler_step_pays(steps):
    cases = ((RELEASED, 0.9), (RELEASED, 0.97), (PAPER, 0.9), (PAPER, 0.6))
    for (reward, score), golden in zip(cases, FILLER[steps], strict=True):
        assert break_even(reward, score, steps) == pytest.approx(golden, abs=6e-4, nan_ok=True)


@given(st.floats(0.05, 1.0), st.integers(2, 12))
def test_the_break_even_of_a_shape_that_does_not_read_the_score_is_known_in_closed_form(score, steps):
    h = weibull(torch.tensor([float(steps), steps + 1.0], dtype=torch.float64))
    expected = float((h[0] / h[1]) ** (steps + 1))
    if expected * score > 1 + 1e-9:
        expected = math.nan
    assert break_even(PAPER, score, steps) == pytest.approx(expected, rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("score", [0.3, 1.0])
def test_without_a_shape_a_filler_as_good_as_the_chain_pays(score):
    assert break_even(UNSHAPED, score, 3) == pytest.approx(1.0)
