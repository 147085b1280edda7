# SPDX-License-Identifier: Apache-2.0
"""Discounted sums on responses longer than one block of tokens, and than a block of blocks."""

import pytest
import torch

from prime_ext.algorithms.advantage import RewardSource, combine_sources
from prime_ext.algorithms.returns import return_to_go

LENGTHS = [0, 1, 63, 64, 65, 128, 200, 4096, 4200]


def batch(n_tokens, holes, dtype=torch.float64):
    """Four rows of which one is padding, one fills all tokens, and garbage stands outside the mask."""
    generator = torch.Generator().manual_seed(n_tokens)
    mask_BT = (
        torch.arange(n_tokens)[None, :] < torch.tensor([n_tokens, n_tokens // 2, 0, n_tokens - n_tokens // 5])[:, None]
    )
    if holes:
        mask_BT &= torch.rand(4, n_tokens, generator=generator) < 0.7
    reward_BT = torch.randn(4, n_tokens, generator=generator, dtype=torch.float64)
    value_BT = torch.randn(4, n_tokens, generator=generator, dtype=torch.float64)
    garbage = torch.tensor(float("nan"), dtype=torch.float64)
    return torch.where(mask_BT, reward_BT, garbage).to(dtype), mask_BT.to(dtype), value_BT.to(dtype)


def loop(x_BT, mask_BT, factor, next_value_weight=0.0, value_BT=None):
    """R_t = x_t + w * V_{t+1} - V_t + factor * R_{t+1} over valid tokens, token by token."""
    result_BT = torch.zeros_like(x_BT)
    running_B, next_value_B = torch.zeros(len(x_BT), dtype=x_BT.dtype), torch.zeros(len(x_BT), dtype=x_BT.dtype)
    for t in reversed(range(x_BT.shape[1])):
        valid_B = mask_BT[:, t].bool()
        value_B = torch.zeros_like(next_value_B) if value_BT is None else value_BT[:, t]
        new_B = x_BT[:, t] + next_value_weight * next_value_B - value_B + factor * running_B
        running_B = torch.where(valid_B, new_B, running_B)
        next_value_B = torch.where(valid_B, value_B, next_value_B)
        result_BT[:, t] = torch.where(valid_B, running_B, 0.0)
    return result_BT


@pytest.mark.parametrize("n_tokens", LENGTHS)
@pytest.mark.parametrize("discount", [1.0, 0.999, 0.5, 0.0])
@pytest.mark.parametrize("holes", [False, True])
def test_the_return_equals_the_recursion_however_long_the_response(n_tokens, discount, holes):
    reward_BT, mask_BT, _ = batch(n_tokens, holes)
    torch.testing.assert_close(return_to_go(reward_BT, mask_BT, discount), loop(reward_BT, mask_BT, discount))


@pytest.mark.parametrize("n_tokens", [65, 4200])
@pytest.mark.parametrize("holes", [False, True])
def test_gae_equals_the_recursion_however_long_the_response(n_tokens, holes):
    reward_BT, mask_BT, value_BT = batch(n_tokens, holes)
    source = RewardSource(reward_BT, mask_BT, discount=0.99, estimator="gae", trace=0.95, value_BT=value_BT)
    result_BT = combine_sources({"process": source}, mask_BT, torch.zeros(4, dtype=torch.int64), False)[0]
    torch.testing.assert_close(result_BT, loop(reward_BT, mask_BT, 0.99 * 0.95, 0.99, value_BT))


@pytest.mark.parametrize("discount", [0.999, 0.5])
def test_float32_loses_no_more_than_its_rounding(discount):
    """No power of the discount is divided by, so nothing overflows or cancels."""
    reward_BT, mask_BT, _ = batch(4200, True)
    exact_BT = loop(reward_BT, mask_BT, discount)
    result_BT = return_to_go(reward_BT.float(), mask_BT.float(), discount)
    torch.testing.assert_close(result_BT.double(), exact_BT, atol=1e-5 * float(exact_BT.abs().max()), rtol=0)
