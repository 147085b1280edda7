# SPDX-License-Identifier: Apache-2.0
"""Metrics of multiple choice, against scikit-learn's definitions written out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.tasks.choice_metrics import METRICS, accuracy, macro_f1, micro_f1

rows = st.lists(st.tuples(st.sampled_from([None, 1, 2, 3]), st.integers(1, 3)), min_size=1)


@given(rows)
def test_micro_f1_is_accuracy(pairs):
    """The reference counts every class, that of unanswered rows included."""
    answers, gold = zip(*pairs, strict=True)
    classes = {*answers, *gold}
    hits = sum(sum(a == c == g for a, g in pairs) for c in classes)
    false_positives = sum(sum(a == c != g for a, g in pairs) for c in classes)
    false_negatives = sum(sum(g == c != a for a, g in pairs) for c in classes)
    assert micro_f1(answers, gold) == pytest.approx(2 * hits / (2 * hits + false_positives + false_negatives))
    assert micro_f1(answers, gold) == accuracy(answers, gold)


@given(rows)
def test_macro_f1_is_the_mean_over_the_classes_of_the_gold_answers(pairs):
    answers, gold = zip(*pairs, strict=True)
    scores = []
    for c in set(gold):
        hits = sum(a == c == g for a, g in pairs)
        precision = hits / max(1, sum(a == c for a in answers))
        recall = hits / sum(g == c for g in gold)
        scores.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    assert macro_f1(answers, gold) == pytest.approx(sum(scores) / len(scores))


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_one_for_gold_zero_for_silence_and_refuses_nothing(name):
    assert METRICS[name]([1, 2], [1, 2]) == 1.0 and METRICS[name]([None, None], [1, 2]) == 0.0
    for answers, gold in (([], []), ([1], [1, 2])):
        with pytest.raises(ValueError, match=f"{len(answers)} answers for {len(gold)} gold options"):
            METRICS[name](answers, gold)
