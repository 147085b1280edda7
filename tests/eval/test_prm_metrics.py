# SPDX-License-Identifier: Apache-2.0
"""ProcessBench's metrics: the official rules, and the threshold against trying them all."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from benchmark_rows import SAMPLES, data_folder
from hypothesis import given
from hypothesis import strategies as st

from eval.prm_inputs import read_processbench
from eval.prm_metrics import (
    average_interval,
    f1_interval,
    first_error,
    fit_threshold,
    mean_interval,
    ordered_pairs,
    pairwise_accuracy,
    processbench_score,
    resampled_f1,
)
from prime_ext.algorithms.prm_accuracy import pair_accuracy


def test_a_step_is_wrong_strictly_below_the_threshold():
    assert first_error([0.9, 0.5, 0.2, 0.8], 0.5) == 2
    assert first_error([0.9, 0.5, 0.2, 0.8], 0.51) == 1
    assert first_error([0.9, 0.5], 0.5) == -1
    assert first_error([], 0.5) == -1
    assert first_error(None, 0.5) is None


def test_f1_is_the_harmonic_mean_of_the_accuracies_of_the_two_classes():
    labels = [0, 1, 2, 3, -1, -1]
    score = processbench_score([0, 1, 2, 0, -1, 3], labels)
    assert (score.error_accuracy, score.correct_accuracy) == (0.75, 0.5)
    assert score.f1 == pytest.approx(0.6)
    # To find an error elsewhere is no better than to find none; a response that could not be judged is wrong.
    assert processbench_score([1, 0, -1, None, -1, None], labels).f1 == 0.0
    assert processbench_score([-1, -1], [-1, -1]).f1 == 0.0, "a class without a response counts as 0"
    with pytest.raises(ValueError):
        processbench_score([1], [1, 2])


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
    tried = [processbench_score([first_error(s, t) for s in scores], labels).f1 for t in [*values, values[-1] + 1]]
    assert f1 == pytest.approx(max(tried))
    assert processbench_score([first_error(s, threshold) for s in scores], labels).f1 == pytest.approx(f1)


def test_the_threshold_lies_in_the_middle_so_that_it_transfers():
    threshold, f1 = fit_threshold([[0.8, 0.1], [0.9, 0.7]], [1, -1])
    assert f1 == 1.0 and threshold == pytest.approx((0.1 + 0.7) / 2)
    low = 1.0
    threshold, f1 = fit_threshold([[low], [math.nextafter(low, 2)]], [0, -1])
    assert f1 == 1.0 and first_error([low], threshold) == 0 and first_error([math.nextafter(low, 2)], threshold) == -1


def test_intervals():
    labels = [0] * 50 + [-1] * 50
    predictions = [0] * 40 + [-1] * 60
    interval = f1_interval(predictions, labels, 500, 0)
    assert interval.low < processbench_score(predictions, labels).f1 < interval.high
    assert interval.standard_error == pytest.approx(0.035, abs=0.01)
    both = [resampled_f1(predictions, labels, 500, seed) for seed in (1, 2)]
    # Two independent halves: the error of the mean is smaller by the root of two.
    assert average_interval(both).standard_error == pytest.approx(interval.standard_error / math.sqrt(2), rel=0.2)
    mean, interval = mean_interval([0.0, 1.0] * 50, 2000, 0)
    assert mean == 0.5 and interval.standard_error == pytest.approx(0.05, rel=0.1)


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=5), min_size=1, max_size=5))
def test_pairwise_accuracy_is_that_of_training(problems):
    counts = [ordered_pairs([float(s) for s, _ in own], [c for _, c in own]) for own in problems]
    flat = [(float(s), float(c), group) for group, own in enumerate(problems) for s, c in own]
    score, label, group = (torch.tensor(column) for column in zip(*flat, strict=True))
    expected, found = pair_accuracy(score, label, group), pairwise_accuracy(counts, 10, 0)
    assert (found is None) == (expected is None)
    if found is not None:
        assert found[0] == pytest.approx(expected)
        assert found[1].low <= found[1].high


# Rows, those without a wrong step, and those with a wrong step and a right final answer.
PROCESSBENCH = {
    "gsm8k": (400, 193, 7),
    "math": (1000, 406, 94),
    "olympiadbench": (1000, 339, 161),
    "omnimath": (1000, 241, 259),
}
PROCESSBENCH_SAMPLES = {"gsm8k": (20, 10, 0), "omnimath": (10, 1, 4)}


@pytest.mark.parametrize(
    "split",
    [
        name
        for name in PROCESSBENCH
        if (data_folder(f"processbench/{name}.json") / f"processbench/{name}.json").is_file()
    ],
)
def test_counts_of_processbench(split):
    path = data_folder(f"processbench/{split}.json") / f"processbench/{split}.json"
    counts = PROCESSBENCH_SAMPLES if path.is_relative_to(SAMPLES) else PROCESSBENCH
    rows, correct, final_correct_but_wrong_step = counts[split]
    items = read_processbench(str(path.parent), [split], "", "\n\n")
    labels = Counter(item.label == -1 for item in items)
    assert len(items) == rows and labels[True] == correct
    raw = json.loads(path.read_text())
    assert sum(row["final_answer_correct"] and row["label"] != -1 for row in raw) == final_correct_but_wrong_step
    # A judge that finds nothing has F1 0; one that knows has 1; steps and their ends agree.
    assert processbench_score([-1] * rows, [item.label for item in items]).f1 == 0.0
    assert processbench_score([item.label for item in items], [item.label for item in items]).f1 == 1.0
    for item in items:
        starts = [0, *(end + 2 for end in item.response.char_ends[:-1])]
        pieces = [item.response.text[a:b] for a, b in zip(starts, item.response.char_ends, strict=True)]
        assert tuple(pieces) == item.response.steps
    assert np.isfinite([item.label for item in items]).all()
