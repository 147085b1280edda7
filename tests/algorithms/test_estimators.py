# SPDX-License-Identifier: Apache-2.0
"""Advantage estimators against verl's own (outcomes) and loops (process rewards); edge cases."""

import itertools
import operator
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from rollout_batches import NAN, batches, orders, random_spans, to_go
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.ray_trainer import compute_advantage

from prime_ext.algorithms.advantage import combine_sources, join_valued, outcome_source
from prime_ext.algorithms.estimators import ESTIMATORS, RewardSource
from prime_ext.algorithms.returns import mark_last_token, whiten
from prime_ext.algorithms.steps import place_at_ends
from prime_ext.algorithms.turns import turn_boundaries

# turn_rloo: test_turns.py.
WITHOUT_TURNS = sorted(set(ESTIMATORS) - {"turn_rloo"})
GROUP_ESTIMATORS = ["grpo", "maxrl", "rloo", "rloo_per_token"]
discounts = st.sampled_from([1.0, 0.9])


def token_rewards(batch, penalty=0.0):
    """Return the label at the last token less each token's penalty; garbage outside the mask."""
    penalty_BT = penalty * batch.reward_BT if penalty else 0.0
    return torch.where(
        batch.mask_BT.bool(),
        batch.label_B[:, None] * mark_last_token(batch.mask_BT) - penalty_BT,
        NAN,
    )


def of_outcome(batch, estimator, penalty=0.0, **options):
    return outcome_source(token_rewards(batch, penalty), batch.mask_BT, estimator, **options)


def given_fields(batch, seed=0):
    """Return values (garbage outside the mask) and ends of turns, which some estimators want."""
    generator = torch.Generator().manual_seed(seed)
    value_BT = torch.rand(batch.mask_BT.shape, generator=generator, dtype=torch.float64)
    given = {"value_BT": torch.where(batch.mask_BT.bool(), value_BT, NAN)}
    return given | {"turn_end_BT": turn_boundaries(batch.mask_BT, batch.mask_BT)}


# ---- outcome only: verl's own --------------------------------------------------------------------


def verls(name, batch, discount=1.0, gae_lambda=1.0, value_BT=None, penalty=0.0):
    """Return verl's advantage of the rows that are not padding, 0 elsewhere."""
    rows = batch.rows
    mask_BT = batch.mask_BT[batch.rows]
    tensors = {"response_mask": mask_BT, "token_level_rewards": token_rewards(batch, penalty)[rows]}
    tensors |= {"values": value_BT[rows]} if value_BT is not None else {}
    # verl's tensors are 0 outside the mask.
    tensors = {key: torch.where(mask_BT.bool(), value, 0.0) for key, value in tensors.items()}
    uids = np.array([f"uid-{group}" for group in batch.group_B[rows].tolist()], dtype=object)
    config = AlgoConfig(gamma=discount, lam=gae_lambda)
    data = DataProto.from_dict(tensors, {"uid": uids})
    result = compute_advantage(data, name, gamma=discount, lam=gae_lambda, config=config)
    advantage_BT = torch.zeros_like(batch.mask_BT)
    # verl keeps whitened values outside the mask (gae); its loss never reads them.
    advantage_BT[rows] = (result.batch["advantages"] * mask_BT).to(mask_BT.dtype)
    return advantage_BT


IN_VERL = ["rloo_vectorized", "grpo", "gae"]


@pytest.mark.parametrize("name", IN_VERL)
@given(
    batch=batches(),
    discount=discounts,
    gae_lambda=st.sampled_from([1.0, 0.95]),
    penalty=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_outcome_only_equals_verls_estimator_of_that_name(
    name, batch, discount, gae_lambda, penalty
):
    # The discount of the others is 1 in verl.
    own = discount if name == "gae" else 1.0
    ours = name.removesuffix("_vectorized")
    fields = given_fields(batch)
    source = of_outcome(batch, ours, penalty, discount=own, gae_lambda=gae_lambda, **fields)
    combined = combine_sources({"outcome": source}, batch.mask_BT, batch.group_B, name == "gae")
    advantage_BT = combined.advantage_BT
    return_BT = combined.return_BT
    if name == "gae":
        # Without spread, verl's (sum + 1e-8) in the mean is blown up by its own 1 / sqrt(0 + 1e-8).
        values = return_BT[batch.mask_BT.bool()]
        assume(len(values) > 1 and float(values.std()) > 0.05)
    if name == "grpo":
        # A rollout alone in its group has no baseline: 0 here, its own reward in verl.
        assume(all(len(batch.members(row)) > 1 for row in batch.rows))
    expected_BT = verls(name, batch, discount, gae_lambda, fields["value_BT"], penalty)
    torch.testing.assert_close(advantage_BT, expected_BT, atol=1e-6, rtol=1e-6)


# ---- process rewards: loops ----------------------------------------------------------------------


def centered(batch, source, i, paid):
    """Return the centered reward of each paid token of row i, by a loop over responses."""
    members = batch.members(i)
    others = [j for j in members if j != i]
    n = len(members)
    if not others:
        return dict.fromkeys(paid[i], 0.0)
    if source.estimator == "rloo_per_token":
        total = sum(sum(paid[j].values()) for j in others)
        per_token = total / max(1, sum(len(batch.tokens(j)) for j in others))
        begin = 0
        left = {}
        for end, reward in paid[i].items():
            left[end] = reward - per_token * sum(begin <= t <= end for t in batch.tokens(i))
            begin = end + 1
        return left
    mean = {j: statistics.fmean(paid[j].values()) for j in members}
    if source.estimator == "grpo":
        scale = 1 / (statistics.stdev(mean.values()) + 1e-6)
        return {t: (r - statistics.fmean(mean.values())) * scale for t, r in paid[i].items()}
    if source.estimator == "maxrl":
        average = statistics.fmean(mean.values())
        return {t: (r - average) / average if average > 0 else 0.0 for t, r in paid[i].items()}
    if source.form == "paper":
        return {t: r - sum(mean[j] for j in others) / (n - 1) for t, r in paid[i].items()}
    return {t: r * n / (n - 1) - sum(mean.values()) / (n - 1) for t, r in paid[i].items()}


def by_loops(batch, source):
    """Return the advantage of every estimator that knows no turns."""
    name = source.estimator
    discount = source.discount
    places = {i: batch.tokens(i) for i in batch.rows}
    paid = {
        i: {t: float(source.reward_BT[i, t]) for t in places[i] if source.mask_BT[i, t]}
        for i in batch.rows
    }

    def row(i):
        tokens = places[i]
        rewards = [paid[i].get(t, 0.0) for t in places[i]]
        value = None if source.value_BT is None else [*source.value_BT[i, tokens].tolist(), 0.0]
        if name == "gae":
            delta = [r + discount * value[k + 1] - value[k] for k, r in enumerate(rewards)]
            return to_go(delta, discount * source.gae_lambda)
        if name in ("reinforce", "prm_value"):
            return [
                r - (value[k] if name == "prm_value" else 0.0)
                for k, r in enumerate(to_go(rewards, discount))
            ]
        left = centered(batch, source, i, paid)
        return to_go([left.get(t, 0.0) for t in tokens], discount)

    return batch.on_tokens(row)


@pytest.mark.parametrize("name", WITHOUT_TURNS)
@given(batch=batches(), data=st.data(), discount=discounts)
def test_the_advantage_of_process_rewards_is_that_of_the_loops(name, batch, data, discount):
    seed = data.draw(st.integers(0, 1000))
    form = data.draw(st.sampled_from(["released", "paper"]))
    spans = random_spans(batch, seed)
    paid_BT = (
        batch.mask_BT if data.draw(st.booleans()) else place_at_ends(spans.mask_BS.double(), spans)
    )
    options = {
        "discount": discount,
        "form": form,
        "gae_lambda": data.draw(st.sampled_from([0.0, 0.5, 1.0])),
    }
    options |= given_fields(batch, seed)
    source = RewardSource(
        torch.where(paid_BT.bool(), batch.reward_BT, NAN), paid_BT, estimator=name, **options
    )
    result_BT = combine_sources(
        {"process": source}, batch.mask_BT, batch.group_B, False
    ).advantage_BT
    torch.testing.assert_close(result_BT, by_loops(batch, source), atol=1e-10, rtol=1e-10)


# ---- MaxRL ---------------------------------------------------------------------------------------


def get_maxrl(outcomes, groups):
    """Return the advantages of responses of two tokens; an outcome of None is padding."""
    mask_BT = torch.tensor([[outcome is not None] * 2 for outcome in outcomes]).double()
    outcome_B = torch.tensor([NAN if value is None else value for value in outcomes]).double()
    source = outcome_source(outcome_B[:, None] * torch.tensor([0.0, 1.0]), mask_BT, "maxrl")
    advantage_BT = ESTIMATORS["maxrl"](source, mask_BT, torch.tensor(groups))
    assert torch.equal(advantage_BT[:, 0], advantage_BT[:, 1])
    return advantage_BT[:, 0].tolist()


def test_maxrl_divides_by_the_share_of_successes():
    assert get_maxrl([1, 0, 0, 0], [7] * 4) == [3, -1, -1, -1]
    assert get_maxrl([0, 1, 1, 0], [7] * 4) == [-1, 1, 1, -1]
    assert get_maxrl([0, 0, 0], [7] * 3) == [0, 0, 0] == get_maxrl([1, 1, 1], [7] * 3)
    # Prompts of two, three and one rollouts, mixed, with padding that has the id of a prompt.
    outcomes = [1, 0.5, None, 0, 0, 0.25, 1]
    expected = [1, 1, 0, -1, -1, 0, 0]
    assert get_maxrl(outcomes, [1, 2, 1, 1, 2, 2, 3]) == expected


@given(st.integers(2, 6), st.floats(0.05, 0.95))
def test_maxrl_is_unbiased_for_the_likelihood_truncated_below_the_number_of_rollouts(n, p):
    """With p = sigmoid(x), a success has the score 1 - p, a failure -p, and grad p = p (1 - p)."""
    expected = 0.0
    for outcomes in itertools.product([0, 1], repeat=n):
        probability = p ** sum(outcomes) * (1 - p) ** (n - sum(outcomes))
        advantages = get_maxrl(outcomes, [0] * n)
        scores = [outcome - p for outcome in outcomes]
        expected += probability * statistics.fmean(map(operator.mul, advantages, scores))
    gradient = p * (1 - p) * sum((1 - p) ** k for k in range(n - 1))
    assert expected == pytest.approx(gradient, abs=1e-9)


# ---- edges common to all -------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@given(batch=batches(), seed=st.integers(0, 1000), discount=discounts)
def test_row_order_group_numbers_and_padding_do_not_matter(name, batch, seed, discount):
    def advantage(part, fields, group_B):
        source = RewardSource(
            part.reward_BT, part.mask_BT, discount=discount, estimator=name, **fields
        )
        return combine_sources({"process": source}, part.mask_BT, group_B, False).advantage_BT

    fields = given_fields(batch)
    reference_BT = advantage(batch, fields, batch.group_B)
    assert reference_BT.isfinite().all() and not reference_BT[~batch.mask_BT.bool()].any()
    for rows in (orders(batch, seed), batch.rows):
        part = batch.permuted(rows)
        moved = {key: value[rows] for key, value in fields.items()}
        # Whitened singletons may be rounding errors blown up: no relative comparison at zero.
        torch.testing.assert_close(
            advantage(part, moved, 77 - part.group_B), reference_BT[rows], atol=1e-6, rtol=1e-6
        )


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0])
def test_equal_outcomes_get_zero_without_rounding_errors(name, reward):
    """The float32 mean of seven times 0.1 is not 0.1; divided by 1e-6 the error would count."""
    mask_BT = torch.ones(7, 2)
    last_BT = mark_last_token(mask_BT)
    source = RewardSource(reward * last_BT, last_BT, estimator=name)
    advantage_BT = combine_sources(
        {"outcome": source}, mask_BT, torch.zeros(7, dtype=torch.int64), False
    ).advantage_BT
    assert advantage_BT.abs().max() <= (0.0 if name == "grpo" else 1e-6)


@given(
    batches(),
    st.sampled_from(GROUP_ESTIMATORS),
    st.sampled_from(GROUP_ESTIMATORS),
    st.sampled_from([0.3, 2.0]),
)
def test_advantages_of_different_estimators_are_summed_before_whitening(batch, one, other, weight):
    outcome = of_outcome(batch, one)
    process = RewardSource(batch.reward_BT, batch.mask_BT, weight, estimator=other)
    result = combine_sources({"outcome": outcome, "process": process}, batch.mask_BT, batch.group_B)
    parts = [
        combine_sources({"only": source}, batch.mask_BT, batch.group_B, False).advantage_BT
        for source in (outcome, replace(process, coefficient=1.0))
    ]
    total_BT = parts[0] + weight * parts[1]
    torch.testing.assert_close(result.return_BT, total_BT)
    torch.testing.assert_close(sum(result.per_source.values()), total_BT)
    torch.testing.assert_close(result.advantage_BT, whiten(total_BT, batch.mask_BT))


def test_no_source_that_counts_is_refused():
    source = RewardSource(torch.ones(2, 2), torch.ones(2, 2), coefficient=0.0)
    with pytest.raises(ValueError, match="at least one must count"):
        combine_sources({"outcome": source}, torch.ones(2, 2), torch.zeros(2, dtype=torch.int64))


def test_sources_of_a_critic_are_left_alone_where_none_counts():
    reward_BT = torch.ones(1, 2)
    source = RewardSource(reward_BT, reward_BT, 0.0, estimator="gae", value_BT=reward_BT)
    sources = {"outcome": source, "process": source}
    assert join_valued(sources, reward_BT) == sources
