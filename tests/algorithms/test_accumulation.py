# SPDX-License-Identifier: Apache-2.0
"""Accumulation of step scores: golden values, loops, and what every mode promises."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import step_scores

from prime_ext.algorithms.accumulation import MODES, MODES_OF_POSITIVE_SCORES, accumulate

NAN = float("nan")
ALL = sorted(MODES)


def by_loops(p, mode, temperature):
    n = len(p)
    if n == 0:
        return 0.0
    return {
        "sum": sum(p),
        "mean": sum(p) / n,
        "geometric": math.prod(p) ** (1 / n) if mode in MODES_OF_POSITIVE_SCORES else None,
        "product": math.prod(p),
        "min": min(p),
        "softmin": -temperature * math.log(sum(math.exp(-x / temperature) for x in p) / n),
        "last": p[-1],
    }[mode]


def test_golden_values_of_a_chain_of_three_steps():
    """0.9, 0.8, 0.5, by hand; softmin at temperature 0.1."""
    score_BS, mask_BS = torch.tensor([[0.9, 0.8, 0.5]], dtype=torch.float64), torch.ones(1, 3)
    golden = {"sum": 2.2, "mean": 0.733333, "geometric": 0.711379, "product": 0.36, "min": 0.5, "last": 0.5}
    golden["softmin"] = 0.603273
    assert golden.keys() == MODES.keys()
    for mode, value in golden.items():
        assert float(accumulate(score_BS, mask_BS, mode)) == pytest.approx(value, abs=5e-7), mode


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("first_weight", [1.0, 0.2])
@given(steps=step_scores(), temperature=st.sampled_from([0.05, 0.1, 1.0]))
def test_every_mode_is_what_the_loop_says_and_0_without_a_step(mode, first_weight, steps, temperature):
    score_BS, mask_BS = steps
    result_B = accumulate(score_BS, mask_BS, mode, temperature, first_weight)
    for result, score_S, mask_S in zip(result_B.tolist(), score_BS, mask_BS, strict=True):
        p = score_S[mask_S].tolist()
        p[:1] = [first_weight * x for x in p[:1]]
        assert result == pytest.approx(by_loops(p, mode, temperature), abs=1e-9)


@pytest.mark.parametrize("mode", sorted(set(ALL) - {"sum", "product"}))
@given(steps=step_scores())
def test_means_and_minima_lie_between_the_smallest_and_the_largest_score(mode, steps):
    score_BS, mask_BS = steps
    result_B = accumulate(score_BS, mask_BS, mode)
    for result, score_S, mask_S in zip(result_B.tolist(), score_BS, mask_BS, strict=True):
        p = score_S[mask_S].tolist() or [0.0]
        assert min(p) - 1e-12 <= result <= max(p) + 1e-12


@pytest.mark.parametrize("mode", ALL)
@given(steps=step_scores(), seed=st.integers(0, 1000))
def test_no_mode_falls_when_scores_rise(mode, steps, seed):
    """Softmin as the soft minimum, not as PURE's weighted mean, for which this does not hold."""
    score_BS, mask_BS = steps
    generator = torch.Generator().manual_seed(seed)
    rise_BS = torch.rand(score_BS.shape, generator=generator, dtype=torch.float64) * (1 - score_BS.nan_to_num(0.5))
    higher_BS = torch.where(mask_BS, score_BS + rise_BS, NAN)
    assert (accumulate(higher_BS, mask_BS, mode) >= accumulate(score_BS, mask_BS, mode) - 1e-12).all()


@pytest.mark.parametrize("mode", sorted(set(ALL) - {*MODES_OF_POSITIVE_SCORES}))
@given(steps=step_scores(-3.0, 3.0))
def test_modes_without_logarithms_take_scores_of_any_sign(mode, steps):
    score_BS, mask_BS = steps
    result_B = accumulate(score_BS, mask_BS, mode)
    for result, score_S, mask_S in zip(result_B.tolist(), score_BS, mask_BS, strict=True):
        assert result == pytest.approx(by_loops(score_S[mask_S].tolist(), mode, 0.1), abs=1e-9)


@given(step_scores(-1.0, 1.0))
def test_softmin_is_the_minimum_when_cold_and_the_mean_when_hot(steps):
    score_BS, mask_BS = steps
    torch.testing.assert_close(
        accumulate(score_BS, mask_BS, "softmin", 1e-5), accumulate(score_BS, mask_BS, "min"), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(
        accumulate(score_BS, mask_BS, "softmin", 1e5), accumulate(score_BS, mask_BS, "mean"), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize(("score", "n_steps"), [(0.005, 20), (0.01, 23), (0.05, 35), (1e-30, 1000)])
def test_the_geometric_mean_does_not_underflow_where_a_product_in_float32_does(score, n_steps):
    """The original multiplies first: these are 0 there."""
    score_BS = torch.full((1, n_steps), score)
    assert float(score_BS.prod()) == 0.0
    assert float(accumulate(score_BS, torch.ones(1, n_steps))) == pytest.approx(score, rel=1e-4)


@pytest.mark.parametrize("mode", ALL)
def test_no_step_one_step_and_a_thousand_steps(mode):
    mask_BS = torch.zeros(3, 1000)
    mask_BS[1, 0], mask_BS[2] = 1, 1
    result_B = accumulate(torch.full((3, 1000), 0.5), mask_BS, mode)
    long = {"sum": 500.0, "product": 0.0}.get(mode, 0.5)
    assert result_B.tolist() == pytest.approx([0.0, 0.5, long], rel=1e-4)
    assert result_B.dtype == torch.float32


@pytest.mark.parametrize("mode", ALL)
def test_a_batch_without_rows_and_rows_without_columns(mode):
    assert accumulate(torch.zeros(0, 4), torch.zeros(0, 4), mode).shape == (0,)
    assert accumulate(torch.zeros(2, 0), torch.zeros(2, 0), mode).tolist() == [0.0, 0.0]


def test_a_score_of_0_makes_the_geometric_mean_and_the_product_0():
    for mode in MODES_OF_POSITIVE_SCORES:
        assert accumulate(torch.tensor([[0.9, 0.0, 0.8]]), torch.ones(1, 3), mode).tolist() == [0.0]


def test_the_weight_of_the_first_step_is_a_bonus_for_length_in_a_geometric_mean():
    """0.2 times the first score is 0.2^(1/n) times the mean: .447 for 2 steps, .669 for 4, .851 for 10."""
    for n_steps, factor in ((2, 0.447214), (4, 0.668740), (10, 0.851340)):
        score = accumulate(torch.ones(1, n_steps, dtype=torch.float64), torch.ones(1, n_steps), first_weight=0.2)
        assert float(score) == pytest.approx(factor, abs=5e-7)


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_an_error_that_names_it(mode, bad):
    score_BS = torch.tensor([[0.5, 0.5], [0.5, bad]])
    with pytest.raises(ValueError, match=f"step 2 of row 1 has the score {bad}, which is not finite"):
        accumulate(score_BS, torch.ones(2, 2), mode)
    assert accumulate(score_BS, torch.tensor([[1, 1], [1, 0]]), mode).isfinite().all()


def test_other_wrong_input_is_an_error():
    score_BS, mask_BS = torch.tensor([[0.5, -0.25]]), torch.ones(1, 2)
    for mode in MODES_OF_POSITIVE_SCORES:
        with pytest.raises(ValueError, match=f"step 2 of row 0 has the score -0.25; {mode} needs scores of at least 0"):
            accumulate(score_BS, mask_BS, mode)
    with pytest.raises(ValueError, match="mode 'median' is not one of sum, mean, geometric"):
        accumulate(score_BS, mask_BS, "median")
    with pytest.raises(ValueError, match="temperature=0.0 must be a number above 0"):
        accumulate(score_BS, mask_BS, "softmin", 0.0)
    with pytest.raises(ValueError, match="first_weight=-1.0 must be a number above 0"):
        accumulate(score_BS, mask_BS, "sum", first_weight=-1.0)
