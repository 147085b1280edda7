# SPDX-License-Identifier: Apache-2.0
"""Length shaping: the golden values of the paper and of the released code, and what each shape promises."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.algorithms.shaping import (
    SHAPES,
    gaussian,
    released,
    released_factor,
    weibull,
    weibull_constant,
    weibull_mode,
)

SIX = 5e-7
# The paper's curve: k = 1.5, lambda = 8, C = 10.735.
WEIBULL = {1: 0.680871, 2: 0.888150, 3: 0.979688, 4: 0.999406, 5: 0.970858, 6: 0.910440, 7: 0.830506, 8: 0.740472}
WEIBULL |= {9: 0.647382, 10: 0.556305, 11: 0.470683, 12: 0.392644}
# s, n: ff(s, n), the released reward s * ff, the paper's reward s * R_s.
TABLE = [
    (0.9, 2, 2.446454, 2.201808, 0.799335),
    (0.9, 3, 4.033520, 3.630168, 0.881719),
    (0.9, 4, 6.650150, 5.985135, 0.899466),
    (0.9, 5, 7.349521, 6.614569, 0.873773),
    (0.9, 8, 9.920859, 8.928773, 0.666425),
    (0.9, 20, 32.938411, 29.644570, 0.054994),
    (0.5, 4, 3.694528, 1.847264, 0.499703),
    (0.5, 5, 3.817000, 1.908500, 0.485429),
    (0.5, 8, 4.209342, 2.104671, 0.370236),
    (0.2, 8, 1.470084, 0.294017, 0.148094),
    (0.19, 8, 0.941076, 0.178804, 0.140690),
    (0.1, 5, 0.668593, 0.066859, 0.097086),
    (0.1, 8, 0.495303, 0.049530, 0.074047),
    (0.88433, 8, 8.858422, 7.833768, 0.654822),
    (0.21159, 12, 1.563450, 0.330810, 0.083080),
]
# Length factor ff / s by number of steps, for s = .1, .3, .5, .7, .85, .9.
FACTORS = {
    5: (6.686, 7.463, 7.634, 7.809, 7.942, 8.166),
    6: (6.050, 7.538, 7.887, 8.252, 8.537, 9.025),
    8: (4.953, 7.691, 8.419, 9.216, 9.863, 11.023),
    10: (4.055, 7.846, 8.986, 10.292, 11.395, 13.464),
    15: (2.460, 8.248, 10.578, 13.565, 16.348, 22.198),
    20: (1.492, 8.671, 12.451, 17.880, 23.454, 36.598),
    36: (0.301, 10.175, 20.981, 43.265, 74.450, 181.27),
}
steps_of_a_response = st.integers(1, 1000)
shapes = st.floats(1.05, 10.0)
scales = st.floats(0.5, 200.0)
unit = st.floats(0.0, 1.0)


def one(value):
    return torch.tensor([value], dtype=torch.float64)


# ---- Weibull -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64])
def test_golden_weibull_to_six_digits_from_counts_of_any_dtype(dtype):
    result = weibull(torch.tensor(list(WEIBULL), dtype=dtype))
    assert result.tolist() == pytest.approx(list(WEIBULL.values()), abs=SIX)
    assert result.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert weibull(torch.tensor([15, 20, 30])).tolist() == pytest.approx([0.2115, 0.0611, 0.0027], abs=5e-5)


def test_golden_mode_and_constant_of_the_weibull():
    assert weibull_mode() == pytest.approx(3.8459989, abs=5e-8)
    assert weibull_constant() == pytest.approx(10.7350476, abs=5e-8)
    # The published constant is rounded, and the published values with it.
    assert float(weibull(one(weibull_mode()))) == pytest.approx(0.9999956, abs=5e-8)
    assert float(weibull(one(4.0), constant=None)) == pytest.approx(0.999411, abs=SIX)


@given(shapes, scales, st.floats(0.0, 1000.0))
def test_a_normalised_weibull_has_the_peak_1_at_its_mode_and_is_bounded(shape, scale, steps):
    assert float(weibull(one(weibull_mode(shape, scale)), shape, scale, None)) == pytest.approx(1.0, abs=1e-12)
    assert 0.0 <= float(weibull(one(steps), shape, scale, None)) <= 1.0 + 1e-9


@given(shapes, scales, st.floats(0.01, 1000.0), st.floats(0.01, 1000.0))
def test_a_weibull_rises_up_to_its_mode_and_falls_behind_it(shape, scale, one_step, other_step):
    near, far = sorted((one_step, other_step))
    mode = weibull_mode(shape, scale)
    before, after = (float(weibull(one(t), shape, scale)) for t in (near, far))
    if far <= mode:
        assert before <= after + 1e-12
    if near >= mode:
        assert before >= after - 1e-12


def test_four_steps_are_the_best_whole_number_for_the_paper():
    assert int(weibull(torch.arange(1, 1001)).argmax()) + 1 == 4


def test_a_weibull_without_a_peak_needs_a_constant():
    with pytest.raises(ValueError, match="shape=1.0 and scale=8.0 has no peak"):
        weibull(one(4.0), shape=1.0, constant=None)
    assert float(weibull(one(4.0), shape=1.0, constant=8.0)) == pytest.approx(math.exp(-0.5))
    with pytest.raises(ValueError, match="constant=0.0 of a Weibull must be above 0"):
        weibull(one(4.0), constant=0.0)
    with pytest.raises(ValueError, match="scale=-1.0"):
        weibull(one(4.0), scale=-1.0)


# ---- Gaussian ----------------------------------------------------------------------------------------------------


def test_golden_gaussian_of_the_predecessor():
    golden = {2: 0.604927, 3: 0.880163, 4: 0.997356, 5: 0.880163, 6: 0.604927, 8: 0.134977, 10: 0.011080}
    assert gaussian(torch.tensor(list(golden))).tolist() == pytest.approx(list(golden.values()), abs=SIX)


@given(st.floats(0.0, 20.0), st.floats(0.2, 20.0), st.floats(0.0, 1000.0))
def test_a_gaussian_of_peak_1_is_symmetric_and_bounded(mean, std, offset):
    left, right = (float(gaussian(one(mean + sign * offset), mean, std, area=None)) for sign in (-1, 1))
    assert left == pytest.approx(right, abs=1e-9) and 0.0 <= left <= 1.0
    assert float(gaussian(one(mean), mean, std, area=None)) == 1.0


def test_a_gaussian_of_the_same_area_has_another_peak():
    assert float(gaussian(one(4.0), std=1.0)) == pytest.approx(1.994711, abs=SIX)
    for wrong in ({"std": 0.0}, {"area": -1.0}):
        with pytest.raises(ValueError, match="of a Gaussian must be above 0"):
            gaussian(one(4.0), **wrong)


# ---- the released function ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("score", "steps", "ff", "code", "paper"), TABLE)
def test_golden_rewards_of_the_released_code_and_of_the_paper(score, steps, ff, code, paper):
    value = float(released(one(score), torch.tensor([steps])))
    assert value == pytest.approx(ff, abs=SIX) and score * value == pytest.approx(code, abs=SIX)
    assert score * float(weibull(one(float(steps)))) == pytest.approx(paper, abs=SIX)


def test_golden_length_factors_of_the_released_code():
    score = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.85, 0.9], dtype=torch.float64)
    for steps, golden in FACTORS.items():
        factor = released_factor(score, torch.tensor(steps))
        assert factor.tolist() == pytest.approx(golden, abs=6e-3 if steps == 36 else 6e-4)
        torch.testing.assert_close(released(score, torch.tensor(steps)), score * factor)
    for steps in (2, 3, 4):
        assert released_factor(score, torch.tensor(steps)).tolist() == pytest.approx([math.exp(steps / 2)] * 6)


def test_the_released_function_jumps_in_the_score():
    """At .2 and at .88433, for more than four steps."""
    for steps, at_bad, at_good in ((5, 1.104, 1.024), (8, 1.484, 1.100), (10, 1.808, None), (15, 2.961, 1.301)):
        for at, jump in ((0.2, at_bad), (0.88433, at_good)):
            below, above = (float(released(one(at + d), torch.tensor([steps]))) for d in (-1e-9, 1e-9))
            if jump is not None:
                assert above / below == pytest.approx(jump, abs=2e-3)
    assert float(released(one(0.2 + 1e-9), one(4.0)) / released(one(0.2 - 1e-9), one(4.0))) == pytest.approx(1.0)


def test_the_released_function_is_continuous_in_the_steps_with_a_kink_at_its_peak():
    for score in (0.1, 0.5, 0.95):
        at, behind = (float(released(one(score), one(4.0 + d))) for d in (0.0, 1e-9))
        assert behind == pytest.approx(at, rel=1e-7)
    left = math.log(float(released_factor(one(0.95), one(4.0)) / released_factor(one(0.95), one(3.999)))) / 0.001
    right = math.log(float(released_factor(one(0.95), one(4.001)) / released_factor(one(0.95), one(4.0)))) / 0.001
    assert (left, right) == (pytest.approx(0.5, abs=1e-3), pytest.approx(0.05, abs=1e-3))


@given(unit, unit, st.integers(1, 500))
def test_the_released_function_is_monotone_in_the_score(score, other, steps):
    low, high = sorted((score, other))
    assert float(released(one(low), torch.tensor([steps]))) <= float(released(one(high), torch.tensor([steps]))) + 1e-12


@given(st.floats(0.212, 1.0), st.integers(4, 499))
def test_the_released_function_pays_for_every_further_step_of_the_same_quality(score, steps):
    now, later = released(one(score), torch.tensor([[steps], [steps + 1]])).flatten().tolist()
    assert later > now


@given(st.floats(0.001, 0.211), st.integers(5, 500))
def test_only_below_its_threshold_it_takes_something_for_length(score, steps):
    now, later = released(one(score), torch.tensor([[steps], [steps + 1]])).flatten().tolist()
    assert later < now


def test_edges_of_the_released_function():
    assert released(torch.tensor([0.9, 0.9, 0.0, 0.0]), torch.tensor([0, -1, 3, 8])).tolist() == [0.0] * 4
    assert float(released(one(0.9), torch.tensor([1000]))) > 1e40
    with pytest.raises(ValueError, match="1000 steps are above what torch.float32 holds"):
        released(torch.tensor([0.9, 0.9]), torch.tensor([5, 1000]))
    assert float(released(torch.tensor([0.9]), torch.tensor([850]))) < math.inf
    with pytest.raises(ValueError, match="scores must be finite, got nan"):
        released(torch.tensor([math.nan]), torch.tensor([5]))


def test_its_constants_are_parameters():
    s, t = one(0.5), torch.tensor([6])
    assert float(released(s, t, slope=0.0)) == pytest.approx(0.5 * math.exp(2.0))
    assert float(released(s, t, peak=6.0)) == pytest.approx(0.5 * math.exp(3.0))
    assert float(released(s, t, growth=0.0, good=0.4)) == pytest.approx(0.5 * math.exp(0.2), rel=1e-6)
    assert float(released(s, t, growth=0.0, bad=0.6)) == pytest.approx(0.5 * math.exp(-0.2), rel=1e-6)
    assert float(released(s, t, growth=0.0, poor=0.5)) == pytest.approx(0.5)


# ---- all of them -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(SHAPES))
@given(score=unit, steps=st.integers(0, 800))
def test_every_factor_is_finite_and_none_is_negative(name, score, steps):
    factor = SHAPES[name](torch.tensor([score]), torch.tensor([steps]))
    assert factor.shape == (1,) and factor.isfinite().all() and (factor >= 0).all()


@pytest.mark.parametrize("name", sorted(set(SHAPES) - {"released"}))
@given(score=unit, steps=steps_of_a_response)
def test_all_but_the_released_shape_are_bounded_by_1_and_do_not_read_the_score(name, score, steps):
    factor = SHAPES[name](torch.tensor([score]), torch.tensor([steps]))
    assert float(factor) <= 1.0 and torch.equal(factor, SHAPES[name](torch.tensor([0.0]), torch.tensor([steps])))


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_numbers_of_steps_that_are_not_finite_are_an_error(name):
    with pytest.raises(ValueError, match="numbers of steps must be finite, got nan"):
        SHAPES[name](torch.tensor([0.5]), torch.tensor([math.nan]))
