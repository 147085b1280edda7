# SPDX-License-Identifier: Apache-2.0
"""Sign-preserving credit: against the formula token by token, and what it promises whatever the scorer says."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.algorithms.sign_preserving import sign_preserving

tokens = st.lists(
    st.tuples(st.floats(-5, 5), st.floats(allow_nan=False, width=32), st.booleans()), min_size=1, max_size=12
)
weights, clips = st.floats(0, 1), st.floats(0.01, 0.99)


def scaled(rows, weight, clip):
    advantage_T, ratio_T, mask_T = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    return sign_preserving(advantage_T[None], ratio_T[None], mask_T[None], weight, clip)[0]


@given(tokens, weights, clips)
def test_each_token_is_the_formula(rows, weight, clip):
    for (advantage, ratio, valid), found in zip(rows, scaled(rows, weight, clip).tolist(), strict=True):
        exponent = math.copysign(1, advantage) * ratio if advantage else 0.0
        factor = min(max(math.exp(min(exponent, 700)), 1 - clip), 1 + clip)
        expected = advantage * (1 - weight + weight * factor) if valid else 0.0
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(tokens, weights, clips)
def test_no_sign_changes_and_the_sum_is_bounded(rows, weight, clip):
    found_T = scaled(rows, weight, clip)
    kept = [advantage if valid else 0.0 for advantage, _, valid in rows]
    assert found_T.sign().tolist() == torch.tensor(kept, dtype=torch.float64).sign().tolist()
    moved = (found_T - torch.tensor(kept, dtype=torch.float64)).abs().sum()
    assert moved <= weight * clip * sum(map(abs, kept)) + 1e-9


def test_what_stands_outside_the_mask_is_never_read():
    mask = torch.tensor([[1.0, 0.0]])
    found = sign_preserving(torch.tensor([[1.0, 1.0]]), torch.tensor([[0.1, math.nan]]), mask, 0.5, 0.2)
    assert found[0].tolist() == pytest.approx([1 + 0.5 * (math.exp(0.1) - 1), 0.0])


@pytest.mark.parametrize(("weight", "clip"), [(1.1, 0.2), (-0.1, 0.2), (0.5, 0.0), (0.5, 1.0)])
def test_shares_out_of_bounds_are_refused(weight, clip):
    with pytest.raises(ValueError, match="weight"):
        sign_preserving(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1), weight, clip)
