# SPDX-License-Identifier: Apache-2.0
"""Every advantage estimator: against verl's own for outcomes, against loops for process rewards, and its edge cases."""

import itertools
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from rollout_batches import NAN, Batch, batches, orders, random_spans, to_go
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.ray_trainer import compute_advantage

from prime_ext.algorithms.advantage import (
    RewardSource,
    combine_sources,
    last_token_mask,
    outcome_source,
    source_return,
)
from prime_ext.algorithms.estimators import ESTIMATORS
from prime_ext.algorithms.estimators.step_based import low_probability_cuts
from prime_ext.algorithms.returns import whiten
from prime_ext.algorithms.steps import end_mask
from prime_ext.algorithms.turns import turn_boundaries

# Those over turns: test_turns.py.
WITHOUT_TURNS = sorted(name for name, entry in ESTIMATORS.items() if "turn_end_BT" not in entry.needs)
GROUP_ESTIMATORS = sorted(name for name, entry in ESTIMATORS.items() if entry.uses_groups and not entry.needs)
discounts = st.sampled_from([1.0, 0.9])


def token_rewards(batch, penalty=0.0):
    """The label at the last token, minus a penalty of its own for each token; garbage outside the mask."""
    penalty_BT = penalty * batch.reward_BT if penalty else 0.0
    return torch.where(batch.mask_BT.bool(), batch.label_B[:, None] * last_token_mask(batch.mask_BT) - penalty_BT, NAN)


def of_outcome(batch, estimator, penalty=0.0, **options):
    return outcome_source(token_rewards(batch, penalty), batch.mask_BT, estimator, **options)


def given_fields(batch, estimator, seed=0):
    """Values (garbage outside the mask) or greedy baselines, where the estimator wants them."""
    generator = torch.Generator().manual_seed(seed)
    value_BT = torch.rand(batch.mask_BT.shape, generator=generator, dtype=torch.float64)
    baseline_B = torch.rand(len(batch.mask_BT), generator=generator, dtype=torch.float64)
    given = {"value_BT": torch.where(batch.mask_BT.bool(), value_BT, NAN), "baseline_B": baseline_B}
    given["cut_BT"] = torch.rand(batch.mask_BT.shape, generator=generator) < 0.4
    given["turn_end_BT"] = turn_boundaries(batch.mask_BT, batch.mask_BT)
    given["state_BT"] = torch.where(batch.mask_BT.bool(), batch.group_B[:, None], -1)
    return {name: given[name] for name in ESTIMATORS[estimator].needs}


def single(source, batch, whitening=None):
    return combine_sources({"outcome": source}, batch.mask_BT, batch.group_B, whitening)[0]


# ---- outcome only: verl's own ------------------------------------------------------------------------------------


def verls(name, batch, discount=1.0, gae_lambda=1.0, value_BT=None, baseline_B=None, penalty=0.0):
    """verl's advantage and return of the rows that are not padding, 0 elsewhere."""
    rows, mask_BT = batch.rows, batch.mask_BT[batch.rows]
    tensors = {"response_mask": mask_BT, "token_level_rewards": token_rewards(batch, penalty)[rows]}
    tensors |= {"values": value_BT[rows]} if value_BT is not None else {}
    # verl's tensors are 0 outside the mask.
    tensors = {key: torch.where(mask_BT.bool(), value, 0.0) for key, value in tensors.items()}
    tensors |= {"reward_baselines": baseline_B[rows]} if baseline_B is not None else {}
    uids = np.array([f"uid-{group}" for group in batch.group_B[rows].tolist()], dtype=object)
    result = compute_advantage(
        DataProto.from_dict(tensors, {"uid": uids}),
        {"dr_grpo": "grpo"}.get(name, name),
        gamma=discount,
        lam=gae_lambda,
        norm_adv_by_std_in_grpo=name != "dr_grpo",
        config=AlgoConfig(gamma=discount, lam=gae_lambda),
    )
    found = []
    for key in ("advantages", "returns"):
        found.append(torch.zeros_like(batch.mask_BT))
        # verl leaves whitened values outside the mask behind (gae); its loss never reads them.
        found[-1][rows] = (result.batch[key] * mask_BT).to(mask_BT.dtype)
    return found


IN_VERL = ["grpo", "dr_grpo", "opo", "gpg", "reinforce_plus_plus_baseline", "reinforce_plus_plus", "remax", "gae"]


@pytest.mark.parametrize("name", IN_VERL)
@given(
    batch=batches(),
    discount=discounts,
    gae_lambda=st.sampled_from([1.0, 0.95]),
    penalty=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_outcome_only_equals_verls_estimator_of_that_name_with_and_without_a_kl_penalty(
    name, batch, discount, gae_lambda, penalty
):
    # The discount of the others is 1 in verl.
    own = discount if name in ("gae", "reinforce_plus_plus") else 1.0
    fields = given_fields(batch, name)
    source = of_outcome(batch, name, penalty, discount=own, gae_lambda=gae_lambda, **fields)
    advantage_BT, return_BT, _ = combine_sources({"outcome": source}, batch.mask_BT, batch.group_B, None)
    if ESTIMATORS[name].whitens:
        # Without spread, verl's (sum + 1e-8) in the mean is blown up by its own 1 / sqrt(0 + 1e-8).
        values = return_BT[batch.mask_BT.bool()]
        assume(len(values) > 1 and float(values.std()) > 0.05)
    expected_BT, _ = verls(name, batch, discount, gae_lambda, **fields, penalty=penalty)
    torch.testing.assert_close(advantage_BT, expected_BT, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["rloo", "rloo_vectorized", *IN_VERL])
@given(seed=st.integers(0, 10_000))
def test_in_float32_a_process_coefficient_of_zero_leaves_verls_estimator_but_for_rounding(name, seed):
    generator = torch.Generator().manual_seed(seed)
    n_rows, n_tokens, ours = 24, 40, name.removesuffix("_vectorized")
    length_B = torch.randint(1, n_tokens + 1, (n_rows,), generator=generator)
    mask_BT = (torch.arange(n_tokens)[None, :] < length_B[:, None]).float()
    label_B = torch.randint(0, 2, (n_rows,), generator=generator).float()
    group_B = (torch.arange(n_rows) // 4)[torch.randperm(n_rows, generator=generator)]
    batch = Batch(torch.full((n_rows, n_tokens), NAN), mask_BT, group_B, label_B)
    fields = {key: value.float() for key, value in given_fields(batch, ours, seed).items()}
    source = of_outcome(batch, ours, singleton_group="keep" if name == "rloo" else None, **fields)
    process = RewardSource(batch.reward_BT, mask_BT, 0.0, estimator="grpo")
    result_BT = combine_sources({"outcome": source, "process": process}, mask_BT, group_B, None)[0]
    expected_BT = verls(name, batch, **fields)[0]
    # To the last bit; the others differ by rounding, as verl's own two forms of rloo and grpo do.
    if name in ("dr_grpo", "opo", "remax"):
        assert torch.equal(result_BT, expected_BT)
    torch.testing.assert_close(result_BT, expected_BT, atol=1e-6, rtol=1e-6)


# ---- process rewards: loops --------------------------------------------------------------------------------------


def std(values):
    return statistics.stdev(values) if len(values) > 1 else 1.0


def constant_baseline(batch, name, i, paid):
    """(b, c) of (r - b) * c for row i, from the rewards that each row is paid, written out response by response."""
    members = batch.members(i)
    mean = {j: statistics.fmean(paid[j].values()) for j in members}
    if name == "grpo_pooled":
        pool = [reward for j in members for reward in paid[j].values()]
        return (0.0 if len(pool) == 1 else statistics.fmean(pool)), 1 / (std(pool) + 1e-6)
    average = 0.0 if len(members) == 1 else statistics.fmean(mean.values())
    if name == "grpo":
        return average, 1 / (std(list(mean.values())) + 1e-6)
    if name == "opo":
        length = {j: len(batch.tokens(j)) for j in members}
        return (0.0 if len(members) == 1 else sum(length[j] * mean[j] for j in members) / sum(length.values())), 1.0
    if name == "gpg":
        # Not abs(sum) > 0: a response whose rewards cancel counts as not rewarded.
        return average, len(batch.rows) / max(1, sum(sum(paid[j].values()) != 0 for j in batch.rows))
    assert name in ("dr_grpo", "reinforce_plus_plus_baseline")
    return average, 1.0


def centred(batch, source, i, paid):
    """What is left of the reward of each paid token of row i."""
    name, members = source.estimator, batch.members(i)
    others = [j for j in members if j != i]
    if not others:
        default = "zero" if name in ("rloo", "rloo_per_token") else "keep"
        if (source.singleton_group or default) == "zero":
            return dict.fromkeys(paid[i], 0.0)
    if name == "rloo":
        mean, n = {j: statistics.fmean(paid[j].values()) for j in members}, len(members)
        if not others:
            return paid[i]
        if source.form == "paper":
            return {t: r - sum(mean[j] for j in others) / (n - 1) for t, r in paid[i].items()}
        return {t: r * n / (n - 1) - sum(mean.values()) / (n - 1) for t, r in paid[i].items()}
    if name == "rloo_per_token":
        total = sum(sum(paid[j].values()) for j in others)
        per_token, begin, left = total / max(1, sum(len(batch.tokens(j)) for j in others)), 0, {}
        for end, reward in paid[i].items():
            left[end] = reward - per_token * sum(begin <= t <= end for t in batch.tokens(i))
            begin = end + 1
        return left
    baseline, scale = constant_baseline(batch, name, i, paid)
    return {t: (r - baseline) * scale for t, r in paid[i].items()}


def by_loops(batch, source):
    """The advantage of every estimator that knows no turns."""
    name, discount = source.estimator, source.discount
    places = {i: batch.tokens(i) for i in batch.rows}
    paid = {i: {t: float(source.reward_BT[i, t]) for t in places[i] if source.mask_BT[i, t]} for i in batch.rows}
    rewards_of = {i: [paid[i].get(t, 0.0) for t in places[i]] for i in batch.rows}
    so_far = {i: dict(zip(places[i], itertools.accumulate(rewards_of[i]), strict=True)) for i in batch.rows}
    returns_of = {i: dict(zip(places[i], to_go(rewards_of[i], discount), strict=True)) for i in batch.rows}

    def centred_at(of_row, i, t, rows):
        there = [of_row[j][t] for j in rows if t in of_row[j]]
        return of_row[i][t] - statistics.fmean(there) if len(there) > 1 or rows == batch.rows else 0.0

    def row(i):
        tokens, rewards, returns = places[i], rewards_of[i], list(returns_of[i].values())
        value = None if source.value_BT is None else [*source.value_BT[i, tokens].tolist(), 0.0]
        if name in ("reinforce", "reinforce_plus_plus"):
            return returns
        if name == "remax":
            return [r - float(source.baseline_B[i]) for r in returns]
        if name == "position_mean":
            return [centred_at(returns_of, i, t, batch.rows) for t in tokens]
        if name == "prm_value":
            return [r - v for r, v in zip(returns, value, strict=False)]
        if name == "gae":
            delta = [r + discount * value[k + 1] - value[k] for k, r in enumerate(rewards)]
            return to_go(delta, discount * source.gae_lambda)
        if name == "segment":
            cuts = [k for k, t in enumerate(tokens) if k == 0 or source.cut_BT[i, t]]
            first = [max(c for c in cuts if c <= k) for k in range(len(tokens))]
            end = [min((c for c in cuts if c > k), default=len(tokens)) for k in range(len(tokens))]
            return [value[e] - value[f] + sum(rewards[f:e]) for f, e in zip(first, end, strict=True)]
        if name == "masked_step":
            return [centred_at(so_far, i, t, batch.members(i)) for t in tokens]
        left = centred(batch, source, i, paid)
        return to_go([left.get(t, 0.0) for t in tokens], discount)

    return batch.on_tokens(row)


@pytest.mark.parametrize("name", WITHOUT_TURNS)
@given(batch=batches(), data=st.data(), discount=discounts, singleton_group=st.sampled_from([None, "zero", "keep"]))
def test_the_advantage_of_process_rewards_is_that_of_the_loops(name, batch, data, discount, singleton_group):
    seed, form = data.draw(st.integers(0, 1000)), data.draw(st.sampled_from(["released", "paper"]))
    paid_BT = batch.mask_BT if data.draw(st.booleans()) else end_mask(random_spans(batch, seed)).double()
    options = {"discount": discount, "form": form, "gae_lambda": data.draw(st.sampled_from([0.0, 0.5, 1.0]))}
    options |= {"singleton_group": singleton_group, **given_fields(batch, name, seed)}
    source = RewardSource(torch.where(paid_BT.bool(), batch.reward_BT, NAN), paid_BT, estimator=name, **options)
    result_BT = combine_sources({"process": source}, batch.mask_BT, batch.group_B, False)[0]
    torch.testing.assert_close(result_BT, by_loops(batch, source), atol=1e-7, rtol=1e-6)


# ---- edges common to all -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@given(batch=batches(), seed=st.integers(0, 1000), discount=discounts)
def test_row_order_group_numbers_and_padding_do_not_matter(name, batch, seed, discount):
    def advantage(part, fields, group_B):
        source = RewardSource(part.reward_BT, part.mask_BT, discount=discount, estimator=name, **fields)
        return combine_sources({"process": source}, part.mask_BT, group_B, None)[0]

    fields = given_fields(batch, name)
    reference_BT = advantage(batch, fields, batch.group_B)
    assert reference_BT.isfinite().all() and not reference_BT[~batch.mask_BT.bool()].any()
    for rows in (orders(batch, seed), batch.rows):
        part = batch.permuted(rows)
        moved = {key: value[rows] for key, value in fields.items()}
        # Singletons whitened alone may be blown up from rounding errors: hence no relative comparison at zero.
        torch.testing.assert_close(advantage(part, moved, 77 - part.group_B), reference_BT[rows], atol=1e-6, rtol=1e-6)


@given(batches(), st.sampled_from(GROUP_ESTIMATORS), st.data())
def test_rows_that_a_source_says_nothing_about_are_as_if_they_were_not_there(batch, name, data):
    absent = data.draw(st.lists(st.booleans(), min_size=len(batch.group_B), max_size=len(batch.group_B)))
    source = RewardSource(batch.reward_BT, batch.mask_BT, estimator=name, absent_B=torch.tensor(absent))
    advantage_BT = source_return(source, batch.mask_BT, batch.group_B)
    there = [row for row in batch.rows if not absent[row]]
    assert not advantage_BT[torch.tensor(absent)].any()
    if there:
        part = batch.permuted(there)
        alone = replace(source, reward_BT=part.reward_BT, mask_BT=part.mask_BT, absent_B=None)
        expected_BT = source_return(alone, part.mask_BT, part.group_B)
        torch.testing.assert_close(advantage_BT[there], expected_BT, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0])
def test_a_group_of_equal_outcomes_receives_zero_and_no_rounding_error_is_blown_up(name, reward):
    """Seven times 0.1 in float32 does not average to 0.1; divided by 1e-6 the difference would count."""
    mask_BT = torch.ones(7, 2)
    last_BT = last_token_mask(mask_BT)
    source = RewardSource(reward * last_BT, last_BT, estimator=name)
    advantage_BT = combine_sources({"outcome": source}, mask_BT, torch.zeros(7, dtype=torch.int64), False)[0]
    assert advantage_BT.abs().max() <= (0.0 if "grpo" in name and name != "dr_grpo" else 1e-6)


@given(batches(), st.sampled_from(GROUP_ESTIMATORS), st.sampled_from(GROUP_ESTIMATORS), st.sampled_from([0.3, 2.0]))
def test_outcome_and_process_may_use_different_estimators_and_are_summed_before_whitening(batch, one, other, weight):
    outcome = of_outcome(batch, one)
    process = RewardSource(batch.reward_BT, batch.mask_BT, weight, estimator=other)
    result = combine_sources({"outcome": outcome, "process": process}, batch.mask_BT, batch.group_B, None)
    parts = [
        combine_sources({"only": source}, batch.mask_BT, batch.group_B, False)[0]
        for source in (outcome, replace(process, coefficient=1.0))
    ]
    total_BT = parts[0] + weight * parts[1]
    torch.testing.assert_close(result[1], total_BT)
    torch.testing.assert_close(sum(result[2].values()), total_BT)
    whitens = ESTIMATORS[one].whitens or ESTIMATORS[other].whitens
    torch.testing.assert_close(result[0], whiten(total_BT, batch.mask_BT) if whitens else total_BT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "ppo"}, "unknown advantage estimator 'ppo'; known: dr_grpo, gae, gigpo"),
        ({"estimator": "gae"}, "'gae' needs value_BT, which was not given"),
        ({"estimator": "remax"}, "'remax' needs baseline_B, which was not given"),
        (
            {"estimator": "grpo", "singleton_group": "drop"},
            "singleton_group must be 'keep', 'zero' or None, got 'drop'",
        ),
        ({"form": "mean"}, "must be 'released' or 'paper', got 'mean'"),
        ({"coefficient": 0.0}, "at least one must count"),
    ],
)
def test_what_no_estimator_can_work_with_is_refused(options, message):
    source = RewardSource(torch.ones(2, 2), torch.ones(2, 2), **options)
    with pytest.raises(ValueError, match=message):
        combine_sources({"outcome": source}, torch.ones(2, 2), torch.zeros(2, dtype=torch.int64))


@given(batches())
def test_the_last_token_mask_marks_the_last_valid_token_only(batch):
    for row, mask_T in enumerate(last_token_mask(batch.mask_BT)):
        assert mask_T.nonzero().flatten().tolist() == batch.tokens(row)[-1:]


def test_spo_cuts_before_every_nth_token_that_the_policy_was_not_sure_of():
    probability_BT = torch.tensor([[0.5, 0.95, 0.9, 0.89, 0.1, 0.2]])
    mask_BT = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, 0.0]])
    assert low_probability_cuts(probability_BT, mask_BT, 0.9, 2).tolist() == [[True, False, False, False, True, False]]
