# SPDX-License-Identifier: Apache-2.0
"""Turns of trajectories with tools: their places, rewards, and leave-one-out over them.

Checked against loops over tokens; leave-one-out also against the gradient of a problem whose
outcomes can be enumerated.
"""

import itertools
import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import batches

from prime_ext.algorithms.advantage import combine_sources
from prime_ext.algorithms.estimators import RewardSource
from prime_ext.algorithms.turns import place_turn_rewards, turn_boundaries


class Trajectories:
    """Rollouts with own tokens at random places, some of them rejected; garbage elsewhere."""

    def __init__(self, batch, seed):
        generator = torch.Generator().manual_seed(seed)
        self.batch = batch
        self.reward_BT = batch.reward_BT
        self.group_B = batch.group_B
        self.own_BT = batch.mask_BT * (torch.rand(batch.mask_BT.shape, generator=generator) < 0.7)
        self.mask_BT = self.own_BT * (torch.rand(batch.mask_BT.shape, generator=generator) < 0.8)
        self.rows = range(len(self.group_B))

    def turns(self, row, valid=True):
        """Return positions of each turn's tokens, by a loop; those of them that are trained on."""
        own = [t for t, one in enumerate(self.own_BT[row].tolist()) if one]
        turns = [
            [t for _, t in run]
            for _, run in itertools.groupby(enumerate(own), lambda pair: pair[1] - pair[0])
        ]
        if not valid:
            return turns
        kept = [[t for t in turn if self.mask_BT[row, t]] for turn in turns]
        return [turn for turn in kept if turn]

    def members(self, row):
        return [i for i in self.rows if self.group_B[i] == self.group_B[row] and self.turns(i)]


trajectories = st.builds(Trajectories, batches(), st.integers(0, 10_000))


# ---- where turns are, what they are paid ----------------------------------------------


@given(trajectories)
def test_rejected_tokens_neither_end_nor_split_a_turn(batch):
    end_BT = turn_boundaries(batch.own_BT, batch.mask_BT)
    for row in batch.rows:
        assert end_BT[row].nonzero()[:, 0].tolist() == [turn[-1] for turn in batch.turns(row)]


@given(trajectories, st.integers(0, 1000))
def test_turns_are_paid_at_their_ends(batch, seed):
    rng = random.Random(seed)
    every = [batch.turns(row, valid=False) for row in batch.rows]
    rewards = [[rng.uniform(-1, 1) for _ in turns[rng.randint(0, 1) :]] for turns in every]
    paid_BT = place_turn_rewards(rewards, batch.own_BT, batch.mask_BT)
    expected_BT = torch.zeros_like(paid_BT)
    for row, turns in enumerate(every):
        for turn, reward in zip(turns, rewards[row], strict=False):
            if kept := [t for t in turn if batch.mask_BT[row, t]]:
                expected_BT[row, kept[-1]] = reward
    assert torch.equal(paid_BT, expected_BT)
    assert (
        place_turn_rewards([], batch.own_BT[:0], batch.mask_BT[:0]).shape == expected_BT[:0].shape
    )
    with pytest.raises(ValueError, match="longer"):
        place_turn_rewards(rewards[:-1], batch.own_BT, batch.mask_BT)


# ---- leave-one-out: loops ------------------------------------------------------------------------


def by_loops(batch, source):
    """Compute advantages row by row, turn by turn; rows without company receive 0."""
    result_BT = torch.zeros_like(batch.reward_BT)
    paid = {
        i: [sum(float(batch.reward_BT[i, t]) for t in turn) for turn in batch.turns(i)]
        for i in batch.rows
    }
    returns = {
        i: [sum(source.discount ** (m - k) * r[m] for m in range(k, len(r))) for k in range(len(r))]
        for i, r in paid.items()
    }
    for i in batch.rows:
        others = [returns[j] for j in batch.members(i) if j != i]
        for k, turn in enumerate(batch.turns(i) if others else []):
            going_on = [g[k] for g in others if len(g) > k] or [g[0] for g in others]
            result_BT[i, turn] = returns[i][k] - sum(going_on) / len(going_on)
    return result_BT


@given(trajectories, st.sampled_from([0.0, 0.9, 1.0]))
def test_the_advantage_of_every_turn_equals_a_loop(batch, discount):
    end_BT = turn_boundaries(batch.own_BT, batch.mask_BT)
    source = RewardSource(
        batch.reward_BT, batch.mask_BT, discount=discount, estimator="turn_rloo", turn_end_BT=end_BT
    )
    found_BT = combine_sources({"turns": source}, batch.mask_BT, batch.group_B, False).advantage_BT
    torch.testing.assert_close(found_BT, by_loops(batch, source), atol=1e-8, rtol=1e-6)
    assert not found_BT[~batch.mask_BT.bool()].any()


# ---- the bias of per-turn baselines where the policy decides when to stop ------------------------

# Up to three turns of one token; the probability of going on differs between turns.
REWARDS = [0.0, 0.7, 0.4]
OUTCOMES = [0.5, 0.2, 1.0]
N = 3


def expected_gradient(estimator, on_logits):
    """Return E[sum of A * grad log pi] / N of a group of N over all outcomes.

    It is the gradient by the two logits ``on_logits`` of going on after the first and the second
    turn. ``estimator`` maps rewards of turns, own tokens (N, 5) and lengths to advantages (N, 5).
    """
    go_on = [1 / (1 + math.exp(-x)) for x in on_logits]
    chance = [1 - go_on[0], go_on[0] * (1 - go_on[1]), go_on[0] * go_on[1]]
    total = [0.0, 0.0]
    for lengths in itertools.product([1, 2, 3], repeat=N):
        # A tool's answer stands between two turns.
        own_BT = torch.tensor(
            [[float(t % 2 == 0 and t < 2 * length) for t in range(5)] for length in lengths]
        )
        reward_BT = torch.zeros(N, 5, dtype=torch.float64)
        for row, length in enumerate(lengths):
            reward_BT[row, 0 : 2 * length : 2] = torch.tensor(REWARDS[:length], dtype=torch.float64)
            reward_BT[row, 2 * length - 2] += OUTCOMES[length - 1]
        advantage_BT = estimator(reward_BT, own_BT, lengths)
        weight = math.prod(chance[length - 1] for length in lengths) / N
        for row, length in enumerate(lengths):
            for turn in range(min(length, 2)):
                slope = (1 - go_on[turn]) if length > turn + 1 else -go_on[turn]
                total[turn] += weight * slope * float(advantage_BT[row, 2 * turn])
    return total


def true_gradient(on_logits):
    logit_2 = torch.tensor(on_logits, dtype=torch.float64, requires_grad=True)
    p, q = logit_2.sigmoid()
    worth = [sum(REWARDS[: k + 1]) + OUTCOMES[k] for k in range(3)]
    ((1 - p) * worth[0] + p * (1 - q) * worth[1] + p * q * worth[2]).backward()
    return logit_2.grad.tolist()


def ours(reward_BT, own_BT, lengths):
    source = RewardSource(
        reward_BT, own_BT, estimator="turn_rloo", turn_end_BT=turn_boundaries(own_BT, own_BT)
    )
    return combine_sources(
        {"turns": source}, own_BT, torch.zeros(N, dtype=torch.long), False
    ).advantage_BT


@pytest.mark.parametrize("on_logits", [[0.0, 0.0], [1.5, -0.7], [-2.0, 0.3]])
def test_leave_one_out_is_unbiased_when_the_policy_may_stop(on_logits):
    assert expected_gradient(ours, on_logits) == pytest.approx(true_gradient(on_logits), abs=1e-12)
