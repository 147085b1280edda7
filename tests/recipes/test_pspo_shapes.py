# SPDX-License-Identifier: Apache-2.0
"""The picture of the shapes: what its curves say, and that it is written."""

import math

import pytest

from recipes.pspo_wrs.plot_shapes import REWARDS, SCORES, factors, fillers

PAPER, CN_PPO, RELEASED = REWARDS["Weibull (paper)"], REWARDS["Gaussian (CN-PPO)"], REWARDS["released code"]


def test_four_steps_are_the_peak_of_all_shapes_but_the_released_one_which_has_none():
    for reward in (PAPER, CN_PPO):
        assert max(factors(reward, 0.9)) == 1.0
    released = factors(RELEASED, 0.9)
    assert released == sorted(released) and released[-1] == pytest.approx(36.598 / 7.389, abs=1e-3)
    assert factors(REWARDS["none"], 0.9) == [0.0] + [pytest.approx(1.0)] * 19


@pytest.mark.parametrize("score", SCORES)
def test_behind_the_peak_a_filler_stops_to_pay_except_with_the_released_code_where_it_becomes_easier(score):
    for reward in (PAPER, CN_PPO):
        assert math.isnan(fillers(reward, score)[-1])
    late = fillers(RELEASED, score)[5:]
    assert late == sorted(late, reverse=True) and late[-1] < score
