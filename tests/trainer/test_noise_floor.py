# SPDX-License-Identifier: Apache-2.0
"""Rounding noise in the log-ratios never becomes a reward, and a signal is not touched by the floor against it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from small_batch import settings

from prime_ext.algorithms.normalization import NOISE_MARGIN
from prime_ext.algorithms.returns import last_token_mask
from prime_ext.trainer.prime_step import PrimeStep
from prime_ext.trainer.reward_sources import advantages

ROWS, TOKENS, NOISE = 64, 40, 0.001
STEP = {"process__granularity": "step", "steps__splitter": "sentences"}
GEOMETRIC = {"process__step_score": "sigmoid", "process__accumulation__mode": "geometric"}
PIPELINES = {
    "token": {},
    "no return": {"process__discount": 0.0},
    "response": {"process__granularity": "response"},
    "smallest step": STEP | {"process__credit": "min_form"},
    "chain": STEP | GEOMETRIC,
}
NORMALIZATIONS = ["batch_max", "return_std"]
pipelines = pytest.mark.parametrize("pipeline", PIPELINES)
normalizations = pytest.mark.parametrize("normalization", NORMALIZATIONS)


def step_of(seed, pipeline, normalization, signal, noise):
    """Sixteen prompts, four rollouts each; rewards are rounding noise, and a signal of the given size per token."""
    options = settings(process__normalization=normalization, whitening=False, **PIPELINES[pipeline])
    generator = torch.Generator().manual_seed(seed + 1)
    length_B = torch.randint(10, TOKENS + 1, (ROWS,), generator=generator)
    mask_BT = (torch.arange(TOKENS) < length_B[:, None]).float()
    outcome_B = torch.arange(ROWS).remainder(2).float()
    drawn_BT = torch.randn(ROWS, TOKENS, generator=generator)
    return PrimeStep(
        settings=options,
        mask_BT=mask_BT,
        reward_BT=outcome_B[:, None] * last_token_mask(mask_BT),
        label_B=outcome_B,
        group_B=torch.arange(ROWS) // 4,
        valid_B=torch.ones(ROWS, dtype=torch.bool),
        process_reward_BT=((NOISE + signal) * drawn_BT) * mask_BT,
        process_noise=noise,
        boundary_BT=(torch.arange(TOKENS) % 5 == 4).expand(ROWS, TOKENS),
    )


def advantage(step):
    return advantages(step, 1.0)[0][step.mask_BT.bool()]


def of_noise(seed, pipeline, normalization, noise):
    """What rounding noise adds to the advantages of a PRM without a signal."""
    step = step_of(seed, pipeline, normalization, 0.0, noise)
    silent = replace(step, process_reward_BT=torch.zeros_like(step.mask_BT))
    return advantage(step) - advantage(silent)


@pipelines
@normalizations
@examples(max_examples=5)
@given(seed=st.integers(0, 10_000))
def test_noise_alone_stays_far_below_the_outcome(pipeline, normalization, seed):
    advantage_N = of_noise(seed, pipeline, normalization, NOISE)
    # The outcome's advantages are 0.67 from 0.
    assert float(advantage_N.std()) < 2 / NOISE_MARGIN
    if normalization == "batch_max":
        assert float(advantage_N.abs().max()) < 4 / NOISE_MARGIN


@pipelines
@normalizations
@examples(max_examples=5)
@given(seed=st.integers(0, 10_000))
def test_a_signal_is_the_same_bit_for_bit(pipeline, normalization, seed):
    floored, published = (step_of(seed, pipeline, normalization, 100 * NOISE, noise) for noise in (NOISE, 0.0))
    assert torch.equal(advantage(floored), advantage(published))
