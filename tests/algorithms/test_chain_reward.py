# SPDX-License-Identifier: Apache-2.0
"""Accumulated score times length factor: the rewards of PSPO-WRS, of its predecessor and of the released code.

Golden values, loops, and what every mode promises.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import NAN, step_scores

from prime_ext.algorithms.accumulation import MODES, accumulate
from prime_ext.algorithms.chain_reward import ChainReward
from prime_ext.algorithms.shaping import SHAPES

PAPER = ChainReward(shape="weibull")
RELEASED = ChainReward(power=2.0, shape="released")
PREDECESSOR = ChainReward(first_weight=0.2, shape="gaussian")
UNSHAPED = ChainReward()
ALL = sorted(MODES)


def by_loops(p, mode):
    if not p:
        return 0.0
    loops = {
        "mean": lambda: sum(p) / len(p),
        "geometric": lambda: math.prod(p) ** (1 / len(p)),
        "min": lambda: min(p),
    }
    return loops[mode]()


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("first_weight", [1.0, 0.2])
@given(data=st.data())
def test_every_mode_is_what_the_loop_says_and_0_without_a_step(mode, first_weight, data):
    score_BS, mask_BS = data.draw(step_scores() if mode == "geometric" else step_scores(-3.0, 3.0))
    result_B = accumulate(score_BS, mask_BS, mode, first_weight)
    for result, score_S, mask_S in zip(result_B.tolist(), score_BS, mask_BS, strict=True):
        p = score_S[mask_S].tolist()
        p[:1] = [first_weight * x for x in p[:1]]
        assert result == pytest.approx(by_loops(p, mode), abs=1e-9)


@pytest.mark.parametrize(("score", "n_steps"), [(0.005, 20), (1e-30, 1000), (0.0, 3)])
def test_the_geometric_mean_does_not_underflow_where_a_product_in_float32_does(score, n_steps):
    """The original multiplies first: these are 0 there."""
    score_BS = torch.full((1, n_steps), score)
    assert float(score_BS.prod()) == 0.0
    assert float(accumulate(score_BS, torch.ones(1, n_steps))) == pytest.approx(score, rel=1e-4)


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_an_error_that_names_it(mode, bad):
    with pytest.raises(ValueError, match=f"step 2 of row 1 has the score {bad}, which is not finite"):
        accumulate(torch.tensor([[0.5, 0.5], [0.5, bad]]), torch.ones(2, 2), mode)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("geometric",), "step 2 of row 0 has the score -0.25; geometric needs"),
        (("median",), "mode 'median' is not one of mean, geometric, min"),
        (("mean", -1.0), "first_weight=-1.0 must be a number above 0"),
    ],
)
def test_other_wrong_input_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        accumulate(torch.tensor([[0.5, -0.25]]), torch.ones(1, 2), *options)


# ---- score times factor ---------------------------------------------------------------------------------------------


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
        (lambda: ChainReward("mean", power=2.0)(*chain(-0.5, -0.5)), "power=2 of a negative accumulated score, -0.5"),
        (lambda: ChainReward("none", shape="released").length_factor(torch.tensor([3])), "'released' reads an accumu"),
        (lambda: PAPER(*chain(math.nan, 0.5)), "step 1 of row 0 has the score nan"),
    ],
)
def test_wrong_choices_are_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
