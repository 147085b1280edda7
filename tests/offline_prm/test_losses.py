# SPDX-License-Identifier: Apache-2.0
"""Losses from step labels, against plain loops and numbers by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.offline_prm.losses import step_loss, step_scores

BETA = 0.5


def test_scores_by_hand():
    # Steps of two and of one token; the last place is padding.
    q = torch.tensor([[0.2, -0.6, 1.0, 9.0]])
    mask, end = torch.tensor([[1, 1, 1, 0]]), torch.tensor([[0.0, 1.0, 1.0, 0.0]])
    for score, expected in {"prefix": [-0.2, 0.3], "prefix_mean": [-0.1, 0.1], "step": [-0.2, 0.5]}.items():
        found = step_scores(q, mask, end, BETA, score)
        assert found[0, [1, 2]].tolist() == pytest.approx(expected)
    with pytest.raises(ValueError, match="step score must be prefix, prefix_mean or step"):
        step_scores(q, mask, end, BETA, "last")


def test_an_untrained_prm_has_ln_2_and_a_quarter():
    zeros = torch.zeros(2, 3)
    weight = torch.tensor([[0.0, 0.25, 0.25], [0.5, 0.0, 0.0]])
    label = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.0]])
    assert float(step_loss(zeros, label, weight, squared=False)) == pytest.approx(math.log(2))
    assert float(step_loss(zeros, label, weight, squared=True)) == pytest.approx(0.25 * 0.5)


def slow_loss(q_rows, ends_rows, labels_rows, score, squared):
    losses = []
    for q, ends, labels in zip(q_rows, ends_rows, labels_rows, strict=True):
        for number, (end, label) in enumerate(zip(ends, labels, strict=True)):
            start = ends[number - 1] + 1 if score == "step" and number else 0
            logit = BETA * sum(q[start : end + 1]) / (end + 1 if score == "prefix_mean" else 1)
            p = 1 / (1 + math.exp(-logit))
            losses.append((p - label) ** 2 if squared else -(label * math.log(p) + (1 - label) * math.log(1 - p)))
    return sum(losses) / len(losses)


@given(st.integers(0, 10**6), st.sampled_from(["prefix", "prefix_mean", "step"]), st.booleans())
def test_the_loss_is_the_mean_over_labelled_steps_and_padding_changes_nothing(seed, score, squared):
    generator = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=generator))

    q_rows, ends_rows, labels_rows = [], [], []
    for _ in range(number(1, 4)):
        length = number(1, 7)
        ends = sorted({number(0, length) for _ in range(3)} | {length - 1})
        q_rows.append(torch.randn(length, generator=generator).tolist())
        ends_rows.append(ends)
        labels_rows.append([float(number(0, 2)) for _ in ends])
    total, width = sum(map(len, ends_rows)), 8
    q, mask, end, label, weight = (torch.zeros(len(q_rows), width) for _ in range(5))
    q += 5.0
    for row, (values, ends, labels) in enumerate(zip(q_rows, ends_rows, labels_rows, strict=True)):
        q[row, : len(values)] = torch.tensor(values)
        mask[row, : len(values)] = 1
        end[row, ends] = 1
        label[row, ends] = torch.tensor(labels)
        weight[row, ends] = 1 / total
    found = step_loss(step_scores(q, mask, end, BETA, score), label, weight, squared)
    assert float(found) == pytest.approx(slow_loss(q_rows, ends_rows, labels_rows, score, squared), abs=1e-5)
