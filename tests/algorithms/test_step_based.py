# SPDX-License-Identifier: Apache-2.0
"""Rewards of steps: credit rules and the shaping of process rewards, against loops."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import batches, random_spans, step_scores, to_go

from prime_ext.algorithms.process_shaping import ProcessShaping, redistribute
from prime_ext.algorithms.step_credit import CREDITS, StepCredit
from prime_ext.algorithms.steps import end_mask

seeds = st.integers(0, 10_000)
scores = step_scores(-1.0, 1.0, most=5)


def delta_by_loops(p):
    if len(p) < 2:
        return [0.0] * len(p)
    return [*(p[k] - p[k + 1] for k in range(len(p) - 2)), p[-2], 0.0]


def min_form_by_loops(p, temperature):
    weights = [math.exp(-x / temperature) for x in p]
    return [w / sum(weights) * x for w, x in zip(weights, p, strict=True)]


def strict_min_by_loops(p):
    ahead = [*(min(p[k:]) for k in range(len(p))), 0.0]
    return [one - other for one, other in itertools.pairwise(ahead)]


@pytest.mark.parametrize("name", sorted(CREDITS))
@given(steps=scores, temperature=st.sampled_from([0.1, 1.0]), threshold=st.sampled_from([0.0, 0.5]))
def test_every_credit_is_that_of_the_loops(name, steps, temperature, threshold):
    score_BS, mask_BS = steps
    result_BS = StepCredit(name, temperature, threshold).rewards(score_BS, mask_BS)
    assert not result_BS[~mask_BS].any()
    for row, mask_S, found_S in zip(score_BS, mask_BS, result_BS, strict=True):
        p = row[mask_S].tolist()
        clipped = [min(x - threshold, 0.0) for x in p]
        expected = {
            "sum": p,
            "min_form": min_form_by_loops(p, temperature),
            "strict_min": strict_min_by_loops(p),
            "clip": clipped,
            "delta": delta_by_loops(p),
            "clip_delta": delta_by_loops(clipped),
        }[name]
        assert found_S[mask_S].tolist() == pytest.approx(expected, abs=1e-9)


@given(scores)
def test_the_min_form_survives_scores_of_any_size(steps):
    score_BS, mask_BS = steps
    assert StepCredit("min_form").rewards(1e4 * score_BS, mask_BS).isfinite().all()


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
        expected = to_go(rewards, decay)
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


@given(batches(), st.sampled_from(["uniform", "last"]))
def test_redistributed_rewards_of_a_response_sum_to_zero(batch, where):
    def shifted(i):
        q = batch.rewards(i)
        return [r - sum(q) / len(q) for r in q] if where == "uniform" else [*q[:-1], q[-1] - sum(q)]

    torch.testing.assert_close(redistribute(batch.reward_BT, batch.mask_BT, where), batch.on_tokens(shifted))
    with pytest.raises(ValueError, match="must be 'uniform' or 'last', got 'first'"):
        redistribute(batch.reward_BT, batch.mask_BT, "first")
