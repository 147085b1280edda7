# SPDX-License-Identifier: Apache-2.0
"""Accumulated score times length factor: the rewards of PSPO-WRS, of its predecessor and of the released code."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import step_scores

from prime_ext.algorithms.accumulation import MODES
from prime_ext.algorithms.chain_reward import ChainReward, break_even_filler
from prime_ext.algorithms.shaping import SHAPES, weibull

PAPER = ChainReward(shape="weibull")
RELEASED = ChainReward(power=2.0, shape="released")
PREDECESSOR = ChainReward(first_weight=0.2, shape="gaussian")
UNSHAPED = ChainReward()


def chain(*scores):
    return torch.tensor([scores], dtype=torch.float64), torch.ones(1, len(scores))


def test_golden_rewards_of_equal_steps():
    """Section 1.4 of the notes on the method: s, n, released reward, reward of the paper."""
    for score, steps, code, paper in (
        (0.9, 2, 2.201808, 0.799335),
        (0.9, 5, 6.614569, 0.873773),
        (0.9, 20, 29.644570, 0.054994),
        (0.5, 8, 2.104671, 0.370236),
        (0.1, 5, 0.066859, 0.097086),
        (0.21159, 12, 0.330810, 0.083080),
    ):
        steps_of_it = chain(*[score] * steps)
        assert float(PAPER(*steps_of_it).reward_B) == pytest.approx(paper, abs=5e-7)
        assert float(RELEASED(*steps_of_it).reward_B) == pytest.approx(code, abs=5e-7)


def test_golden_reward_of_the_predecessor():
    """(0.2 * 0.9 * 0.8 * 0.7)^(1/3) * 0.880163."""
    assert float(PREDECESSOR(*chain(0.9, 0.8, 0.7)).reward_B) == pytest.approx(0.409622, abs=5e-7)


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


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("shape", sorted(SHAPES))
@given(steps=step_scores(), power=st.sampled_from([0.5, 1.0, 2.0]))
def test_every_pair_of_accumulation_and_shape_gives_finite_rewards_of_at_least_0(mode, shape, steps, power):
    score_BS, mask_BS = steps
    value = ChainReward(mode, power=power, shape=shape)(score_BS, mask_BS)
    assert value.reward_B.isfinite().all() and (value.reward_B >= 0).all()
    assert not value.reward_B[value.count_B < 2].any()
    if mode not in ("sum",) and shape != "released":
        assert (value.reward_B <= 1).all()


@pytest.mark.parametrize("shape", sorted(SHAPES))
@given(low=st.floats(0.0, 1.0), high=st.floats(0.0, 1.0), steps=st.integers(0, 300))
def test_the_reward_never_falls_when_the_score_rises(shape, low, high, steps):
    reward = ChainReward(shape=shape, power=1.5)
    values = reward.value(torch.tensor(sorted((low, high)), dtype=torch.float64), torch.tensor([steps, steps]))
    assert float(values[0]) <= float(values[1]) + 1e-12


def test_a_thousand_steps():
    scores = chain(*[0.9] * 1000)
    assert float(UNSHAPED(*scores).reward_B) == pytest.approx(0.9)
    assert float(PAPER(*scores).reward_B) == float(PREDECESSOR(*scores).reward_B) == 0.0
    with pytest.raises(ValueError, match="the released shape grows without end: 1000 steps are above"):
        RELEASED(torch.full((1, 1000), 0.9), torch.ones(1, 1000))


def test_wrong_choices_are_errors():
    scores = chain(0.5, 0.5)
    with pytest.raises(ValueError, match="shape 'cosine' is not one of none, weibull, gaussian, released"):
        ChainReward(shape="cosine")(*scores)
    with pytest.raises(ValueError, match="single_step 'half' is not one of zero, keep"):
        ChainReward(single_step="half")(*scores)
    with pytest.raises(ValueError, match="power=2 of a negative accumulated score, -1"):
        ChainReward("sum", power=2.0)(*chain(-0.5, -0.5))
    with pytest.raises(ValueError, match="'released' reads an accumulated score, and nothing is accumulated"):
        ChainReward("none", shape="released").length_factor(torch.tensor([3]))
    with pytest.raises(ValueError, match="step 1 of row 0 has the score nan"):
        PAPER(*chain(math.nan, 0.5))


# ---- what a filler step has to score to pay ----------------------------------------------------------------------

# Steps before: the released code for chains of score .9 and .97, the paper for .9 and .6; relative to the score.
FILLER = {
    2: (0.472, 0.472, 0.745, 0.745),
    3: (0.368, 0.368, 0.923, 0.923),
    4: (0.831, 0.779, math.nan, 1.156),
    5: (0.859, 0.741, math.nan, 1.470),
    10: (0.824, 0.577, math.nan, math.nan),
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


@given(st.floats(0.05, 1.0), st.integers(2, 20))
def test_without_a_shape_a_filler_has_to_be_as_good_as_the_chain(score, steps):
    assert break_even(UNSHAPED, score, steps) == pytest.approx(1.0, rel=1e-6)


@given(st.floats(0.05, 1.0), st.integers(2, 12))
def test_the_break_even_of_a_shape_that_does_not_read_the_score_is_known_in_closed_form(score, steps):
    h = weibull(torch.tensor([float(steps), steps + 1.0], dtype=torch.float64))
    expected = float((h[0] / h[1]) ** (steps + 1))
    if expected * score > 1 + 1e-9:
        expected = math.nan
    assert break_even(PAPER, score, steps) == pytest.approx(expected, rel=1e-6, nan_ok=True)
