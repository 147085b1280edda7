# SPDX-License-Identifier: Apache-2.0
"""Steps of responses, what their scores pay, and the shaping of process rewards, against loops over tokens."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import batches, random_boundaries, random_spans, step_scores, to_go

from prime_ext.algorithms.process_shaping import ProcessShaping, redistribute
from prime_ext.algorithms.step_credit import CREDITS, StepCredit
from prime_ext.algorithms.steps import (
    delimiter_boundaries,
    end_mask,
    place_at_ends,
    step_spans,
    sum_over_steps,
    valid_ends,
)

seeds = st.integers(0, 10_000)
scores = step_scores(-1.0, 1.0, most=5)


def steps_by_loops(tokens, boundary):
    """Lists of the token positions of each step of one response."""
    steps = [[]]
    for t in tokens:
        steps[-1].append(t)
        if boundary[t]:
            steps.append([])
    return [step for step in steps if step]


@given(batches(), st.integers(0, 1000))
def test_spans_cut_after_boundaries_and_the_last_valid_token_closes_the_last_step(batch, seed):
    boundary_BT = random_boundaries(batch, seed)
    spans = step_spans(boundary_BT, batch.mask_BT)
    steps = {i: steps_by_loops(batch.tokens(i), boundary_BT[i]) for i in range(len(batch.group_B))}
    assert spans.mask_BS.shape[1] == max(1, *map(len, steps.values()), 0)
    for i, expected in steps.items():
        n = len(expected)
        assert spans.mask_BS[i].tolist() == [True] * n + [False] * (spans.mask_BS.shape[1] - n)
        assert int(spans.count_B[i]) == n
        assert spans.end_BS[i, :n].tolist() == [step[-1] for step in expected]
        assert spans.length_BS[i].tolist() == [len(s) for s in expected] + [0] * (spans.mask_BS.shape[1] - n)
        number = {t: k for k, step in enumerate(expected) for t in step}
        assert spans.step_BT[i].tolist() == [number.get(t, -1) for t in range(spans.step_BT.shape[1])]


@given(batches(), st.integers(0, 1000))
def test_values_of_steps_go_back_and_forth(batch, seed):
    boundary_BT = random_boundaries(batch, seed)
    spans = step_spans(boundary_BT, batch.mask_BT)
    total_BS = sum_over_steps(batch.reward_BT, spans)
    placed_BT = place_at_ends(total_BS, spans)
    expected_placed = torch.zeros_like(placed_BT)
    for i in batch.rows:
        for k, step in enumerate(steps_by_loops(batch.tokens(i), boundary_BT[i])):
            total = sum(float(batch.reward_BT[i, t]) for t in step)
            assert float(total_BS[i, k]) == pytest.approx(total)
            expected_placed[i, step[-1]] = total
    torch.testing.assert_close(placed_BT, expected_placed)
    assert end_mask(spans).sum() == spans.mask_BS.sum()
    assert not placed_BT[end_mask(spans) == 0].any()


@given(st.lists(st.booleans(), min_size=1, max_size=8).filter(any), st.lists(st.integers(0, 7), max_size=4))
def test_a_step_ends_at_its_last_valid_token_or_before_it(mask, ends):
    valid = [t for t, one in enumerate(mask) if one]
    expected = [max((t for t in valid if t <= end), default=valid[0]) for end in ends]
    assert valid_ends(torch.tensor(ends, dtype=torch.long), torch.tensor(mask)).tolist() == expected


def test_of_delimiters_in_a_row_the_last_one_ends_the_step():
    token_BT, all_BT = torch.tensor([[5, 7, 8, 5, 7, 5]]), torch.ones(1, 6)
    assert delimiter_boundaries(token_BT, all_BT, [7, 8]).tolist() == [[False, False, True, False, True, False]]
    assert not delimiter_boundaries(token_BT, all_BT, []).any()
    # What a tool writes delimits nothing: neither does it end a step, nor is it in a row with what does.
    of_the_policy_BT = torch.tensor([[1, 1, 0, 0, 0, 1]])
    assert delimiter_boundaries(token_BT, of_the_policy_BT, [7, 8]).tolist() == [[False, True] + [False] * 4]


# ---- credit and shaping ---------------------------------------------------------------------------------------------


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
