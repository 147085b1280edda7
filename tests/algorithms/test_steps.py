# SPDX-License-Identifier: Apache-2.0
"""Steps of responses, what their scores pay, and the shaping of process rewards, against loops over tokens."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import batches, random_boundaries, step_scores

from prime_ext.algorithms.process_shaping import CREDITS, ProcessShaping, credit_rewards
from prime_ext.algorithms.steps import (
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


# ---- credit and shaping ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CREDITS)
@given(steps=scores)
def test_every_credit_is_that_of_the_loops(name, steps):
    score_BS, mask_BS = steps
    result_BS = credit_rewards(name, score_BS, mask_BS)
    assert not result_BS[~mask_BS].any()
    for row, mask_S, found_S in zip(score_BS, mask_BS, result_BS, strict=True):
        p = row[mask_S].tolist()
        weights = [math.exp(-x / 0.1) for x in p]
        min_form = [w / sum(weights) * x for w, x in zip(weights, p, strict=True)]
        assert found_S[mask_S].tolist() == pytest.approx({"sum": p, "min_form": min_form}[name], abs=1e-9)


@given(batches())
def test_a_response_is_paid_the_sum_at_its_last_token(batch):
    paid_BT, source_BT = ProcessShaping("response")(batch.reward_BT, batch.mask_BT)
    for i in batch.rows:
        assert paid_BT[i, source_BT[i].bool()].tolist() == pytest.approx([sum(batch.rewards(i))], abs=1e-6)


@pytest.mark.parametrize(
    ("granularity", "message"),
    [("word", "granularity 'word' is not one of token, step"), ("step", "needs the steps of the responses")],
)
def test_an_unknown_granularity_and_steps_without_spans_are_refused(granularity, message):
    with pytest.raises(ValueError, match=message):
        ProcessShaping(granularity)(torch.ones(1, 2), torch.ones(1, 2))
