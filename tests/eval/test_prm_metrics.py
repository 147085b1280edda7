# SPDX-License-Identifier: Apache-2.0
"""Metrics of PRMs: ProcessBench's official rules, the best threshold, best-of-N and votes, against trying them all."""

import math
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
import torch
from benchmark_rows import SAMPLES
from hypothesis import given
from hypothesis import strategies as st

from eval.prm_data import read_processbench
from eval.prm_metrics import (
    AGGREGATIONS,
    best_of,
    first_error,
    fit_threshold,
    interval_of,
    mean_interval,
    ordered_pairs,
    pairwise_accuracy,
    processbench_score,
    resampled_f1,
)
from prime_ext.algorithms.prm_accuracy import pair_accuracy


def test_a_step_is_wrong_strictly_below_the_threshold():
    found = [first_error([0.9, 0.5, 0.2, 0.8], threshold) for threshold in (0.2, 0.5, 0.51)]
    assert found == [-1, 2, 1]
    assert first_error([], 0.5) == -1 and first_error(None, 0.5) is None


def test_f1_is_the_harmonic_mean_of_the_accuracies_of_the_two_classes():
    labels = [0, 1, 2, 3, -1, -1]
    score = processbench_score([0, 1, 2, 0, -1, 3], labels)
    assert score == {"error_accuracy": 0.75, "correct_accuracy": 0.5, "f1": pytest.approx(0.6)}
    # To find an error elsewhere is no better than to find none; a response that could not be judged is wrong.
    assert processbench_score([1, 0, -1, None, -1, None], labels)["f1"] == 0.0
    assert processbench_score([-1, -1], [-1, -1])["f1"] == 0.0, "a class without a response counts as 0"


ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=5)), st.integers(-1, 4)
    ),
    min_size=1,
    max_size=12,
)


@given(ROWS)
def test_the_fitted_threshold_is_the_best_there_is(rows):
    rows = [(scores, min(label, len(scores) - 1) if scores else label) for scores, label in rows]
    scores, labels = [row[0] for row in rows], [row[1] for row in rows]
    values = sorted({value for own in scores for value in own or []})
    if not values:
        with pytest.raises(ValueError, match="no response has a step score"):
            fit_threshold(scores, labels)
        return
    threshold, f1 = fit_threshold(scores, labels)
    tried = [processbench_score([first_error(s, t) for s in scores], labels)["f1"] for t in [*values, values[-1] + 1]]
    assert f1 == pytest.approx(max(tried))
    assert processbench_score([first_error(s, threshold) for s in scores], labels)["f1"] == pytest.approx(f1)


def test_the_threshold_lies_in_the_middle_so_that_it_transfers():
    assert fit_threshold([[0.8, 0.1], [0.9, 0.7]], [1, -1]) == (pytest.approx((0.1 + 0.7) / 2), 1.0)
    low, high = [1.0], [math.nextafter(1.0, 2)]
    threshold, f1 = fit_threshold([low, high], [0, -1])
    assert f1 == 1.0 and first_error(low, threshold) == 0 and first_error(high, threshold) == -1


def test_intervals():
    labels, predictions = [0] * 50 + [-1] * 50, [0] * 40 + [-1] * 60
    interval = interval_of(resampled_f1(predictions, labels, 500, 0))
    assert interval["low"] < processbench_score(predictions, labels)["f1"] < interval["high"]
    assert interval["standard_error"] == pytest.approx(0.035, abs=0.01)
    mean = mean_interval([0.0, 1.0] * 50, 2000, 0)
    assert mean["value"] == 0.5 and mean["standard_error"] == pytest.approx(0.05, rel=0.1)


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=5), min_size=1, max_size=5))
def test_pairwise_accuracy_is_that_of_training(problems):
    counts = [ordered_pairs([float(s) for s, _ in own], [c for _, c in own]) for own in problems]
    flat = [(float(s), float(c), group) for group, own in enumerate(problems) for s, c in own]
    score, label, group = (torch.tensor(column) for column in zip(*flat, strict=True))
    expected, found = pair_accuracy(score, label, group), pairwise_accuracy(counts, 10, 0)
    assert (found is None) == (expected is None)
    if found is not None:
        assert found["value"] == pytest.approx(expected) and found["low"] <= found["high"]
        assert found["pairs"] == sum(number for _, number in counts) > 0


@st.composite
def pools(draw):
    n = draw(st.integers(1, 7))
    correct = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    scores = draw(st.lists(st.integers(-2, 2).map(float), min_size=n, max_size=n))
    return correct, scores, draw(st.integers(1, n))


@given(pools())
def test_the_best_of_n_equals_the_average_over_all_subsets(pool):
    correct, scores, draws = pool

    def chosen(subset):
        highest = max(scores[k] for k in subset)
        return fmean(correct[k] for k in subset if scores[k] == highest)

    expected = fmean(map(chosen, combinations(range(len(correct)), draws)))
    assert best_of(scores, correct, draws) == pytest.approx(expected)


def test_aggregations():
    expected = {"min": 0.2, "sum": 1.5, "last": 0.8, "mean": 0.5, "product": 0.08}
    assert {how: pytest.approx(value(np.array([0.5, 0.2, 0.8]))) for how, value in AGGREGATIONS.items()} == expected


@pytest.mark.parametrize(("split", "rows", "right"), [("gsm8k", 20, 10), ("omnimath", 10, 1)])
def test_rows_of_processbench_have_their_labels_and_steps(split, rows, right):
    items = read_processbench(str(SAMPLES / "processbench"), split, "", "\n\n")
    assert len(items) == rows and sum(item.label == -1 for item in items) == right
    for item in items:
        starts = [0, *(end + 2 for end in item.response.char_ends[:-1])]
        pieces = [item.response.text[a:b] for a, b in zip(starts, item.response.char_ends, strict=True)]
        assert tuple(pieces) == item.response.steps
