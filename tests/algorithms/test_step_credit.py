# SPDX-License-Identifier: Apache-2.0
"""Credit assignment from step scores: PURE, clip and delta, against loops and known values."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import NAN, batches

from prime_ext.algorithms.returns import return_to_go
from prime_ext.algorithms.step_credit import (
    clip_delta_rewards,
    clip_rewards,
    delta_rewards,
    min_form,
    token_leave_one_out,
)
from prime_ext.algorithms.steps import place_at_ends, step_spans

ALL_3, ALL_4 = torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 4, dtype=torch.bool)


@st.composite
def scored_steps(draw):
    """Scores, garbage behind the last step, and the mask of steps; some rows have none."""
    counts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    n_steps = max(1, *counts, 0)
    rows = [[rng.uniform(-1, 1) if k < n else rng.choice([NAN, 5.0]) for k in range(n_steps)] for n in counts]
    mask_BS = torch.tensor([[k < n for k in range(n_steps)] for n in counts])
    return torch.tensor(rows, dtype=torch.float64), mask_BS


def lists(score_BS, mask_BS):
    return [score_BS[i, mask_BS[i]].tolist() for i in range(len(score_BS))]


def check(result_BS, mask_BS, expected):
    assert not result_BS[~mask_BS].any()
    for got, wanted in zip(lists(result_BS, mask_BS), expected, strict=True):
        assert got == pytest.approx(wanted, abs=1e-9)


def delta_by_loops(p):
    if len(p) < 2:
        return [0.0] * len(p)
    return [*(p[k] - p[k + 1] for k in range(len(p) - 2)), p[-2], 0.0]


@given(scored_steps(), st.sampled_from([0.1, 1.0]))
def test_min_form_weighs_each_score_by_the_softmin(steps, temperature):
    score_BS, mask_BS = steps
    expected = []
    for p in lists(*steps):
        weights = [pow(2.718281828459045, -x / temperature) for x in p]
        expected.append([w / sum(weights) * x for w, x in zip(weights, p, strict=True)])
    check(min_form(score_BS, mask_BS, temperature), mask_BS, expected)


def test_golden_min_form():
    score_BS = torch.tensor([[0.8, -0.5, 0.2]])
    result_BS = min_form(score_BS, ALL_3)
    torch.testing.assert_close(
        result_BS, torch.tensor([[2.26e-6 * 0.8, 0.999087 * -0.5, 9.11e-4 * 0.2]]), atol=1e-6, rtol=0
    )
    assert float(result_BS.sum()) == pytest.approx(-0.499359, abs=1e-6)


@given(scored_steps())
def test_the_rewards_of_the_min_form_sum_to_the_minimum_when_it_is_cold(steps):
    score_BS, mask_BS = steps
    for total, p in zip(min_form(score_BS, mask_BS, 1e-5).sum(-1).tolist(), lists(*steps), strict=True):
        assert total == pytest.approx(min(p, default=0.0), abs=1e-3)


@given(scored_steps())
def test_the_min_form_survives_scores_of_any_size(steps):
    score_BS, mask_BS = steps
    assert min_form(1e4 * score_BS, mask_BS).isfinite().all()


GOLDEN = torch.tensor([[0.9, 0.95, 0.4, 0.7]])


def test_golden_clip_and_delta():
    torch.testing.assert_close(clip_rewards(GOLDEN, ALL_4, 0.5), torch.tensor([[0.0, 0.0, -0.1, 0.0]]))
    torch.testing.assert_close(delta_rewards(GOLDEN, ALL_4), torch.tensor([[-0.05, 0.55, 0.4, 0.0]]))
    torch.testing.assert_close(clip_delta_rewards(GOLDEN, ALL_4, 0.5), torch.tensor([[0.0, 0.1, -0.1, 0.0]]))


@given(scored_steps(), st.sampled_from([0.0, 0.5]))
def test_clip_delta_and_both(steps, threshold):
    score_BS, mask_BS = steps
    rows = lists(*steps)
    clipped = [[min(p - threshold, 0.0) for p in row] for row in rows]
    check(clip_rewards(score_BS, mask_BS, threshold), mask_BS, clipped)
    check(delta_rewards(score_BS, mask_BS), mask_BS, [delta_by_loops(row) for row in rows])
    check(clip_delta_rewards(score_BS, mask_BS, threshold), mask_BS, [delta_by_loops(row) for row in clipped])


@given(scored_steps())
def test_the_return_of_delta_rewards_is_the_score_of_the_current_step(steps):
    score_BS, mask_BS = steps
    return_BS = return_to_go(delta_rewards(score_BS, mask_BS), mask_BS)
    check(return_BS, mask_BS, [[*p[:-1], 0.0] if p else [] for p in lists(*steps)])


@given(batches(padding=True), st.integers(0, 1000))
def test_the_token_baseline_of_pure_subtracts_the_others_reward_per_token(batch, seed):
    generator = torch.Generator().manual_seed(seed)
    boundary_BT = torch.rand(batch.mask_BT.shape, generator=generator) < 0.4
    spans = step_spans(boundary_BT, batch.mask_BT)
    reward_BS = torch.rand(spans.mask_BS.shape, generator=generator, dtype=torch.float64)
    reward_BS = torch.where(spans.mask_BS, reward_BS, NAN)
    length_B = batch.mask_BT.sum(-1)
    result_BS = token_leave_one_out(reward_BS, spans.mask_BS, spans.length_BS - 1, length_B, batch.group_B)
    rows = lists(reward_BS, spans.mask_BS)
    for i in batch.rows:
        others = [j for j in batch.members(i) if j != i]
        per_token = sum(sum(rows[j]) for j in others) / sum(len(batch.tokens(j)) for j in others) if others else 0.0
        tokens = spans.length_BS[i, spans.mask_BS[i]].tolist()
        expected = [reward - per_token * (n - 1) for reward, n in zip(rows[i], tokens, strict=True)]
        assert result_BS[i, spans.mask_BS[i]].tolist() == pytest.approx(expected)
    assert not result_BS[~spans.mask_BS].any()


def test_the_token_baseline_does_not_depend_on_the_padded_width():
    """One branch of the original divides by the padded width of the batch."""
    reward_BS, length_B, group_B = torch.tensor([[1.0], [3.0]]), torch.tensor([2, 4]), torch.zeros(2)
    mask_BS, tokens_BS = torch.ones(2, 1, dtype=torch.bool), torch.tensor([[2], [4]])
    narrow_BS = token_leave_one_out(reward_BS, mask_BS, tokens_BS, length_B, group_B)
    assert narrow_BS.tolist() == [[1.0 - 2 * 3 / 4], [3.0 - 4 * 1 / 2]]
    wide_BS = torch.nn.functional.pad(reward_BS, (0, 3), value=NAN)
    wide = token_leave_one_out(
        wide_BS,
        torch.nn.functional.pad(mask_BS, (0, 3)),
        torch.nn.functional.pad(tokens_BS, (0, 3)),
        length_B,
        group_B,
    )
    assert torch.equal(wide[:, :1], narrow_BS) and not wide[:, 1:].any()


def test_step_rewards_placed_at_their_ends_become_returns_of_tokens():
    spans = step_spans(torch.tensor([[0, 1, 0, 0, 1]]), torch.ones(1, 5))
    reward_BT = place_at_ends(clip_rewards(torch.tensor([[0.2, 0.9]]), spans.mask_BS, 0.5), spans)
    torch.testing.assert_close(return_to_go(reward_BT, torch.ones(1, 5)), torch.tensor([[-0.3, -0.3, 0.0, 0.0, 0.0]]))
