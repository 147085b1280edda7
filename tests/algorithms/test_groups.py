# SPDX-License-Identifier: Apache-2.0
"""Group statistics against loops over the members of each group."""

import statistics

import pytest
import torch
from hypothesis import given
from rollout_batches import NAN, batches

from prime_ext.algorithms.groups import PromptGroups


def with_garbage(batch):
    """Labels of valid rows; NaN in padding, whose id may be that of a real prompt."""
    valid_B = batch.mask_BT.any(-1)
    return torch.where(valid_B, batch.label_B, NAN), PromptGroups.of(batch.group_B, valid_B)


@given(batches())
def test_sum_mean_and_standard_deviation(batch):
    label_B, groups = with_garbage(batch)
    for i in range(len(batch.group_B)):
        values = [float(batch.label_B[j]) for j in batch.members(i)] if i in batch.rows else []
        assert int(groups.size_B[i]) == len(values)
        assert float(groups.sum(label_B)[i]) == pytest.approx(sum(values))
        assert float(groups.mean(label_B)[i]) == pytest.approx(statistics.fmean(values) if values else 0.0)
        expected = statistics.stdev(values) if len(values) > 1 else 0.0
        assert float(groups.std(label_B)[i]) == pytest.approx(expected)


@given(batches())
def test_spread_shows_each_group_once(batch):
    label_B, groups = with_garbage(batch)
    spread_GN = groups.spread(label_B, -1.0)
    seen = sorted(sorted(v for v in row if v >= 0) for row in spread_GN.tolist())
    numbers = {int(batch.group_B[i]) for i in batch.rows}
    expected = [[float(batch.label_B[i]) for i in batch.rows if int(batch.group_B[i]) == g] for g in numbers]
    assert seen == sorted(sorted(values) for values in expected)


def test_a_batch_of_padding_has_no_groups():
    groups = PromptGroups.of(torch.tensor([3, 3]), torch.zeros(2, dtype=torch.bool))
    value_B = torch.tensor([NAN, 1.0])
    assert groups.n_groups == 0 and groups.size_B.tolist() == [0, 0]
    assert groups.sum(value_B).tolist() == groups.mean(value_B).tolist() == groups.std(value_B).tolist() == [0.0, 0.0]
    assert groups.spread(value_B, 0.0).shape == (0, 0)
