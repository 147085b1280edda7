# SPDX-License-Identifier: Apache-2.0
"""Length shaping: the golden values of the paper and of the released code, and what each shape promises."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.algorithms.shaping import SHAPES, gaussian, released, weibull, weibull_constant, weibull_mode

SIX = 5e-7
# The paper's curve: k = 1.5, lambda = 8, C = 10.735.
WEIBULL = {1: 0.680871, 2: 0.888150, 3: 0.979688, 4: 0.999406, 5: 0.970858, 8: 0.740472, 12: 0.392644}
# s, n: ff(s, n) of the released code, whose reward is s * ff.
RELEASED = [
    (0.9, 2, 2.446454),
    (0.9, 4, 6.650150),
    (0.9, 5, 7.349521),
    (0.9, 20, 32.938411),
    (0.5, 4, 3.694528),
    (0.5, 8, 4.209342),
    (0.2, 8, 1.470084),
    (0.19, 8, 0.941076),
    (0.1, 5, 0.668593),
    (0.88433, 8, 8.858422),
    (0.21159, 12, 1.563450),
]


def one(value):
    return torch.tensor([value], dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64])
def test_golden_weibull_to_six_digits_from_counts_of_any_dtype(dtype):
    result = weibull(torch.tensor(list(WEIBULL), dtype=dtype))
    assert result.tolist() == pytest.approx(list(WEIBULL.values()), abs=SIX)
    assert result.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_golden_mode_and_constant_of_the_weibull():
    assert weibull_mode() == pytest.approx(3.8459989, abs=5e-8)
    assert weibull_constant() == pytest.approx(10.7350476, abs=5e-8)
    # The published constant is rounded, and the published values with it.
    assert float(weibull(one(weibull_mode()))) == pytest.approx(0.9999956, abs=5e-8)
    assert float(weibull(one(4.0), constant=None)) == pytest.approx(0.999411, abs=SIX)
    assert float(weibull(one(4.0), shape=1.0, constant=8.0)) == pytest.approx(math.exp(-0.5))


def test_golden_gaussian_of_the_predecessor():
    golden = {2: 0.604927, 3: 0.880163, 4: 0.997356, 5: 0.880163, 6: 0.604927, 8: 0.134977, 10: 0.011080}
    assert gaussian(torch.tensor(list(golden))).tolist() == pytest.approx(list(golden.values()), abs=SIX)
    # The same area makes another peak; without one the peak is 1.
    assert float(gaussian(one(4.0), std=1.0)) == pytest.approx(1.994711, abs=SIX)
    assert float(gaussian(one(7.0), mean=7.0, std=3.0, area=None)) == 1.0


@pytest.mark.parametrize(("score", "steps", "factor"), RELEASED)
def test_golden_values_of_the_released_code(score, steps, factor):
    assert score * float(released(one(score), torch.tensor([steps]))) == pytest.approx(factor, abs=SIX)


def test_edges_of_the_released_function():
    assert released(torch.tensor([0.9, 0.9, 0.0, 0.0]), torch.tensor([0, -1, 0, -1])).tolist() == [0.0] * 4
    assert float(released(one(0.9), torch.tensor([1000]))) > 1e40
    assert float(released(torch.tensor([0.9]), torch.tensor([850]))) < math.inf


@pytest.mark.parametrize("name", sorted(SHAPES))
@given(score=st.floats(0.0, 1.0), steps=st.integers(0, 800))
def test_every_factor_is_finite_and_none_is_negative(name, score, steps):
    factor = SHAPES[name](torch.tensor([score]), torch.tensor([steps]))
    assert factor.shape == (1,) and factor.isfinite().all() and (factor >= 0).all()
    if name != "released":
        assert float(factor) <= 1.0 and torch.equal(factor, SHAPES[name](torch.tensor([0.0]), torch.tensor([steps])))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weibull(one(4.0), shape=1.0, constant=None), "shape=1.0 and scale=8.0 has no peak"),
        (lambda: weibull(one(4.0), constant=0.0), "constant=0.0 of a Weibull must be above 0"),
        (lambda: weibull(one(4.0), scale=-1.0), "scale=-1.0"),
        (lambda: gaussian(one(4.0), std=0.0), "std=0.0"),
        (lambda: gaussian(one(4.0), area=-1.0), "area=-1.0"),
        (lambda: released(torch.tensor([0.9]), torch.tensor([1000])), "1000 steps are above what torch.float32 holds"),
        (lambda: released(one(math.nan), one(5.0)), "scores must be finite, got nan"),
        *[
            (lambda shape=shape: shape(one(0.5), one(math.nan)), "numbers of steps must be finite, got nan")
            for shape in SHAPES.values()
        ],
    ],
)
def test_what_has_no_value_is_an_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
