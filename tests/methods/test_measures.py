# SPDX-License-Identifier: Apache-2.0
"""Metrics of rollouts and of their scores, with values by hand."""

import logging

import pytest
import torch

from prime_ext.methods.measures import count_lonely, measure_sums
from prime_ext.methods.rollouts import Rollouts
from prime_ext.prm.implicit_prm import TokenLogProbs, measure

NAN = float("nan")


def make_rollouts(labels, groups, lengths=None):
    """Return rollouts of one token each, or of these lengths; 0 is padding."""
    lengths = lengths or [1] * len(labels)
    mask_BT = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    label_B, group_B = torch.tensor(labels), torch.tensor(groups)
    return Rollouts(None, [], mask_BT, mask_BT.float(), label_B, group_B)


def test_sums_are_averaged_over_valid_rollouts_by_verdict():
    rollouts = make_rollouts([1.0, 0.0, 0.25, NAN], [0, 0, 1, 2], [1, 1, 1, 0])
    measured = measure_sums(rollouts, torch.tensor([3.0, 1.0, 5.0, 100.0]))
    expected = {"mean": 3.0, "std": 2.0, "correct": 3.0, "wrong": 3.0}
    assert measured == {f"prm/reward_sum/{name}": value for name, value in expected.items()}


def test_a_verdict_without_rollouts_has_no_mean_and_one_rollout_no_spread():
    measured = measure_sums(make_rollouts([0.75], [0]), torch.tensor([2.0]))
    expected = {"mean": 2.0, "std": 0.0, "correct": 2.0}
    assert measured == {f"prm/reward_sum/{name}": value for name, value in expected.items()}
    assert measure_sums(make_rollouts([0.0, 0.0], [0, 0], [0, 0]), torch.zeros(2)) == {}


@pytest.mark.parametrize(("groups", "alone"), [([0, 0, 1, 2], 1), ([0, 0, 1, 1], 0)])
def test_lonely_rollouts_are_counted_without_padding(groups, alone, caplog):
    rollouts = make_rollouts([1.0] * 4, groups, [1, 1, 1, 0] if alone else [1] * 4)
    with caplog.at_level(logging.WARNING):
        assert count_lonely(rollouts) == {"prime/rollouts_without_baseline": alone}
    assert len(caplog.records) == (1 if alone else 0)


def test_pairs_over_two_mini_batches_do_not_count():
    rollouts = make_rollouts([1.0, 0.0, 1.0, 0.0], [0, 0, 1, 1])
    score_B1 = torch.tensor([[2.0], [1.0], [1.0], [2.0]])

    def pairs(mini_batches):
        scores = TokenLogProbs(score_B1, torch.zeros(4, 1), mini_batch_B=mini_batches)
        return measure(rollouts, scores, "before")[0]

    assert pairs(None) == (1.0, 2.0)
    # The pair of the second prompt is split; numbers must not run from one prompt into another.
    assert pairs(torch.tensor([0, 0, 0, 1])) == (1.0, 1.0)
    assert pairs(torch.tensor([1, 2, 0, 0])) == (0.0, 1.0)
