# SPDX-License-Identifier: Apache-2.0
"""Losses from step labels, against plain loops and numbers by hand."""

import math
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.offline_prm.losses import step_loss, step_scores

BETA = 0.5


def slow_loss(q_rows, ends_rows, labels_rows, score, squared):
    losses = []
    for q, ends, labels in zip(q_rows, ends_rows, labels_rows, strict=True):
        for number, (end, label) in enumerate(zip(ends, labels, strict=True)):
            start = ends[number - 1] + 1 if score == "step" and number else 0
            logit = BETA * sum(q[start : end + 1])
            p = 1 / (1 + math.exp(-logit))
            losses.append((p - label) ** 2 if squared else -(label * math.log(p) + (1 - label) * math.log(1 - p)))
    return sum(losses) / len(losses)


LABELLED_STEPS = st.lists(st.tuples(st.lists(st.floats(-2, 2), min_size=1, max_size=3), st.sampled_from([0.0, 1.0])))


@given(
    st.lists(LABELLED_STEPS.filter(bool), min_size=1, max_size=3),
    st.sampled_from(["prefix", "step"]),
    st.booleans(),
)
def test_the_loss_is_the_mean_over_labelled_steps_and_padding_changes_nothing(responses, score, squared):
    q_rows = [[value for step, _ in steps for value in step] for steps in responses]
    ends_rows = [[n - 1 for n in accumulate(len(step) for step, _ in steps)] for steps in responses]
    labels_rows = [[label for _, label in steps] for steps in responses]
    total, width = sum(map(len, ends_rows)), 1 + max(map(len, q_rows))
    q, mask, end, label, weight = (torch.zeros(len(q_rows), width, dtype=torch.float64) for _ in range(5))
    q += 5.0
    for row, (values, ends, labels) in enumerate(zip(q_rows, ends_rows, labels_rows, strict=True)):
        q[row, : len(values)] = torch.tensor(values)
        mask[row, : len(values)] = 1
        end[row, ends] = 1
        label[row, ends] = torch.tensor(labels, dtype=torch.float64)
        weight[row, ends] = 1 / total
    found = step_loss(step_scores(q, mask, end, BETA, score), label, weight, squared)
    assert float(found) == pytest.approx(slow_loss(q_rows, ends_rows, labels_rows, score, squared), abs=1e-5)
