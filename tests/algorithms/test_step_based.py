# SPDX-License-Identifier: Apache-2.0
"""Rewards of steps: credit rules, the estimator of PURE and the shaping of process rewards, against loops."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import NAN, batches, random_spans, step_scores

from prime_ext.algorithms.advantage import RewardSource, combine_sources
from prime_ext.algorithms.process_reward import redistribute
from prime_ext.algorithms.process_shaping import ProcessShaping
from prime_ext.algorithms.returns import return_to_go
from prime_ext.algorithms.step_credit import (
    CREDITS,
    StepCredit,
    clip_delta_rewards,
    clip_rewards,
    delta_rewards,
    min_form,
    strict_min_rewards,
)
from prime_ext.algorithms.steps import end_mask, place_at_ends, sum_over_steps

seeds = st.integers(0, 10_000)
scores = step_scores(-1.0, 1.0, most=5)


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


@given(scores, st.sampled_from([0.1, 1.0]))
def test_min_form_weighs_each_score_by_the_softmin(steps, temperature):
    score_BS, mask_BS = steps
    expected = []
    for p in lists(*steps):
        weights = [math.exp(-x / temperature) for x in p]
        expected.append([w / sum(weights) * x for w, x in zip(weights, p, strict=True)])
    check(min_form(score_BS, mask_BS, temperature), mask_BS, expected)


@given(scores)
def test_the_min_form_survives_scores_of_any_size(steps):
    score_BS, mask_BS = steps
    assert min_form(1e4 * score_BS, mask_BS).isfinite().all()


@given(scores, st.sampled_from([0.0, 0.5]))
def test_clip_delta_and_both(steps, threshold):
    score_BS, mask_BS = steps
    rows = lists(*steps)
    clipped = [[min(p - threshold, 0.0) for p in row] for row in rows]
    check(clip_rewards(score_BS, mask_BS, threshold), mask_BS, clipped)
    check(delta_rewards(score_BS, mask_BS), mask_BS, [delta_by_loops(row) for row in rows])
    check(clip_delta_rewards(score_BS, mask_BS, threshold), mask_BS, [delta_by_loops(row) for row in clipped])


@given(batches(), seeds, st.sampled_from([1.0, 0.9]))
def test_rloo_per_token_subtracts_from_each_step_the_others_mean_per_token_times_its_length(batch, seed, discount):
    spans = random_spans(batch, seed)
    reward_BT = torch.where(end_mask(spans).bool(), batch.reward_BT, NAN)
    source = RewardSource(reward_BT, end_mask(spans), discount=discount, estimator="rloo_per_token")
    result_BT = combine_sources({"only": source}, batch.mask_BT, batch.group_B, False)[0]
    ends = {i: [t for t in batch.tokens(i) if end_mask(spans)[i, t]] for i in batch.rows}
    for i in batch.rows:
        others = [j for j in batch.members(i) if j != i]
        if not others:
            assert not result_BT[i].any()
            continue
        total = sum(float(batch.reward_BT[j, t]) for j in others for t in ends[j])
        baseline = total / sum(len(batch.tokens(j)) for j in others)
        running, centred = 0.0, {}
        begin = 0
        for end in ends[i]:
            n_tokens = len([t for t in batch.tokens(i) if begin <= t <= end])
            centred[end] = float(batch.reward_BT[i, end]) - baseline * n_tokens
            begin = end + 1
        for t in reversed(batch.tokens(i)):
            running = centred.get(t, 0.0) + discount * running
            assert float(result_BT[i, t]) == pytest.approx(running, abs=1e-9)


@given(batches(), seeds)
def test_the_return_to_go_of_strict_min_is_the_smallest_score_ahead(batch, seed):
    spans = random_spans(batch, seed)
    score_BS = sum_over_steps(batch.reward_BT, spans)
    reward_BT = place_at_ends(strict_min_rewards(score_BS, spans.mask_BS), spans)
    return_BT = return_to_go(reward_BT, batch.mask_BT)
    for i in batch.rows:
        scores = score_BS[i, spans.mask_BS[i]].tolist()
        expected = [min(scores[spans.step_BT[i, t] :]) for t in batch.tokens(i)]
        assert return_BT[i, batch.tokens(i)].tolist() == pytest.approx(expected, abs=1e-6)


@given(batches(), seeds, st.sampled_from(sorted(CREDITS)), st.sampled_from(["none", "uniform", "last"]))
def test_whatever_the_choices_rewards_stand_where_the_source_mask_says_and_sum_as_promised(
    batch, seed, credit, redistribution
):
    spans = random_spans(batch, seed)
    shaping = ProcessShaping("step", 0.0, StepCredit(credit, 0.1, 0.2), redistribution)
    paid_BT, source_BT = shaping(batch.reward_BT, batch.mask_BT, spans)
    assert torch.equal(source_BT.bool(), end_mask(spans).bool())
    assert paid_BT.isfinite().all() and not paid_BT[~source_BT.bool()].any()
    if redistribution != "none":
        plain_BT, _ = replace(shaping, redistribution="none")(batch.reward_BT, batch.mask_BT, spans)
        torch.testing.assert_close(paid_BT, redistribute(plain_BT, source_BT, redistribution))
        torch.testing.assert_close(paid_BT.sum(-1), torch.zeros_like(paid_BT.sum(-1)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("granularity", ["token", "prefix_value", "response"])
@given(batch=batches(), decay=st.sampled_from([0.0, 0.5]))
def test_rewards_of_tokens_and_of_a_response_are_sums_of_what_follows(granularity, batch, decay):
    """sum_l lambda^l r_(t+l) of tokens, without the last reward for prefix values; all of them at the last token."""
    paid_BT, source_BT = ProcessShaping(granularity, decay)(batch.reward_BT, batch.mask_BT)
    for i in batch.rows:
        rewards = [float(batch.reward_BT[i, t]) for t in batch.tokens(i)]
        if granularity == "prefix_value":
            rewards[-1] = 0.0
        expected = [sum(decay**lag * r for lag, r in enumerate(rewards[k:])) for k in range(len(rewards))]
        if granularity == "response":
            expected = [sum(rewards)]
        assert paid_BT[i, source_BT[i].bool()].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("granularity", "message"),
    [("word", "granularity 'word' is not one of token, prefix_value"), ("step", "needs the steps of the responses")],
)
def test_an_unknown_granularity_and_steps_without_spans_are_refused(granularity, message):
    with pytest.raises(ValueError, match=message):
        ProcessShaping(granularity)(torch.ones(1, 2), torch.ones(1, 2))
