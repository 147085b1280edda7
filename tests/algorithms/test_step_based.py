# SPDX-License-Identifier: Apache-2.0
"""Estimators that look at steps or positions, against loops; and the shaping of process rewards in front of them."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import NAN, batches

from prime_ext.algorithms.advantage import RewardSource, combine_sources
from prime_ext.algorithms.process_shaping import ProcessShaping
from prime_ext.algorithms.returns import return_to_go
from prime_ext.algorithms.step_credit import CREDITS, StepCredit, strict_min_rewards
from prime_ext.algorithms.steps import end_mask, place_at_ends, step_spans, sum_over_steps

seeds = st.integers(0, 10_000)


def random_boundaries(batch, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch.mask_BT.shape, generator=generator) < 0.4


def advantage_of(source, batch):
    return combine_sources({"only": source}, batch.mask_BT, batch.group_B, False)[0]


@given(batches(), seeds, st.sampled_from([1.0, 0.9]))
def test_rloo_per_token_subtracts_from_each_step_the_others_mean_per_token_times_its_length(batch, seed, discount):
    spans = step_spans(random_boundaries(batch, seed), batch.mask_BT)
    reward_BT = torch.where(end_mask(spans).bool(), batch.reward_BT, NAN)
    source = RewardSource(reward_BT, end_mask(spans), discount=discount, estimator="rloo_per_token")
    result_BT = advantage_of(source, batch)
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
def test_a_segment_receives_the_rise_of_the_value_over_it_and_the_last_one_the_outcome(batch, seed):
    cut_BT = random_boundaries(batch, seed)
    generator = torch.Generator().manual_seed(seed)
    value_BT = torch.rand(batch.mask_BT.shape, generator=generator, dtype=torch.float64)
    garbage_BT = torch.where(batch.mask_BT.bool(), value_BT, NAN)
    last = {i: batch.tokens(i)[-1] for i in batch.rows}
    source_mask_BT = torch.zeros_like(batch.mask_BT)
    for i, t in last.items():
        source_mask_BT[i, t] = 1.0
    source = RewardSource(batch.reward_BT, source_mask_BT, estimator="segment", value_BT=garbage_BT, cut_BT=cut_BT)
    result_BT = advantage_of(source, batch)
    for i in batch.rows:
        tokens = batch.tokens(i)
        cuts = [t for t in tokens if cut_BT[i, t] or t == tokens[0]]
        for t in tokens:
            start = max(cut for cut in cuts if cut <= t)
            later = [cut for cut in cuts if cut > t]
            end = float(value_BT[i, later[0]]) if later else float(batch.reward_BT[i, last[i]])
            assert float(result_BT[i, t]) == pytest.approx(end - float(value_BT[i, start]))
    assert not result_BT[~batch.mask_BT.bool()].any()


@given(batches(), seeds)
def test_the_return_to_go_of_strict_min_is_the_smallest_score_ahead(batch, seed):
    spans = step_spans(random_boundaries(batch, seed), batch.mask_BT)
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
    spans = step_spans(random_boundaries(batch, seed), batch.mask_BT)
    shaping = ProcessShaping("step", 0.0, StepCredit(credit, 0.1, 0.2), redistribution)
    paid_BT, source_BT = shaping(batch.reward_BT, batch.mask_BT, spans)
    assert torch.equal(source_BT.bool(), end_mask(spans).bool())
    assert paid_BT.isfinite().all() and not paid_BT[~source_BT.bool()].any()
    if redistribution != "none":
        torch.testing.assert_close(paid_BT.sum(-1), torch.zeros_like(paid_BT.sum(-1)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("granularity", ["token", "response"])
@given(batch=batches())
def test_token_and_response_rewards_have_the_same_total(granularity, batch):
    paid_BT, source_BT = ProcessShaping(granularity)(batch.reward_BT, batch.mask_BT)
    kept_BT = torch.where(source_BT.bool(), paid_BT, 0.0)
    expected = [sum(float(batch.reward_BT[i, t]) for t in batch.tokens(i)) for i in batch.rows]
    assert kept_BT.sum(-1)[batch.rows].tolist() == pytest.approx(expected, abs=1e-6)


def test_min_form_of_a_response_is_its_worst_step():
    """PURE: temperature .1, scores .8, -.5, .2 sum to -.499359."""
    reward_BT, mask_BT = torch.tensor([[0.8, -0.5, 0.2]]), torch.ones(1, 3)
    shaping = ProcessShaping("step", credit=StepCredit("min_form", 0.1))
    paid_BT, _ = shaping(reward_BT, mask_BT, step_spans(torch.ones(1, 3), mask_BT))
    assert float(paid_BT.sum()) == pytest.approx(-0.499359, abs=1e-5)


def test_an_unknown_granularity_and_steps_without_spans_are_refused():
    with pytest.raises(ValueError, match="granularity 'word' is not one of token, prefix_value, step, response"):
        ProcessShaping("word")(torch.ones(1, 2), torch.ones(1, 2))
    with pytest.raises(ValueError, match="needs the steps of the responses"):
        ProcessShaping("step")(torch.ones(1, 2), torch.ones(1, 2))


def test_the_shaping_does_not_depend_on_what_stands_outside_the_mask():
    rng = random.Random(0)
    mask_BT = torch.tensor([[1.0, 1.0, 0.0, 1.0, 0.0]])
    reward_BT = torch.tensor([[rng.random() for _ in range(5)]])
    noisy_BT = torch.where(mask_BT.bool(), reward_BT, NAN)
    spans = step_spans(torch.tensor([[0, 1, 1, 0, 1]]), mask_BT)
    for granularity in ("token", "prefix_value", "step", "response"):
        for trace in (0.0, 0.5) if granularity in ("token", "prefix_value") else (0.0,):
            shaping = ProcessShaping(granularity, trace, redistribution="none")
            clean_BT, source_BT = shaping(reward_BT, mask_BT, spans)
            other_BT, _ = shaping(noisy_BT, mask_BT, spans)
            keep_BT = source_BT.bool()
            assert torch.equal(clean_BT[keep_BT], other_BT[keep_BT])
