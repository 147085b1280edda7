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


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("first_weight", [1.0, 0.2])
@given(data=st.data(), temperature=st.sampled_from([0.05, 0.1, 1.0]))
def test_every_mode_is_what_the_loop_says_and_0_without_a_step(mode, first_weight, data, temperature):
    score_BS, mask_BS = data.draw(step_scores() if mode in MODES_OF_POSITIVE_SCORES else step_scores(-3.0, 3.0))
    result_B = accumulate(score_BS, mask_BS, mode, temperature, first_weight)
    for result, score_S, mask_S in zip(result_B.tolist(), score_BS, mask_BS, strict=True):
        p = score_S[mask_S].tolist()
        p[:1] = [first_weight * x for x in p[:1]]
        assert result == pytest.approx(by_loops(p, mode, temperature), abs=1e-9)
    if temperature == 0.1:
        assert torch.equal(accumulate(score_BS, mask_BS, mode, first_weight=first_weight), result_B)


@pytest.mark.parametrize(("score", "n_steps"), [(0.005, 20), (1e-30, 1000), (0.0, 3)])
def test_the_geometric_mean_does_not_underflow_where_a_product_in_float32_does(score, n_steps):
    """The original multiplies first: these are 0 there."""
    score_BS = torch.full((1, n_steps), score)
    assert float(score_BS.prod()) == 0.0
    assert float(accumulate(score_BS, torch.ones(1, n_steps))) == pytest.approx(score, rel=1e-4)


@pytest.mark.parametrize("mode", ALL)
def test_a_batch_without_rows_and_rows_without_columns(mode):
    assert accumulate(torch.zeros(0, 4), torch.zeros(0, 4), mode).shape == (0,)
    assert accumulate(torch.zeros(2, 0), torch.zeros(2, 0), mode).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_an_error_that_names_it(mode, bad):
    with pytest.raises(ValueError, match=f"step 2 of row 1 has the score {bad}, which is not finite"):
        accumulate(torch.tensor([[0.5, 0.5], [0.5, bad]]), torch.ones(2, 2), mode)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[((mode,), f"step 2 of row 0 has the score -0.25; {mode} needs") for mode in MODES_OF_POSITIVE_SCORES],
        (("median",), "mode 'median' is not one of sum, mean, geometric"),
        (("softmin", 0.0), "temperature=0.0 must be a number above 0"),
        (("sum", 0.1, -1.0), "first_weight=-1.0 must be a number above 0"),
    ],
)
def test_other_wrong_input_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        accumulate(torch.tensor([[0.5, -0.25]]), torch.ones(1, 2), *options)
