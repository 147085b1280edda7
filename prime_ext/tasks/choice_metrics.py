# SPDX-License-Identifier: Apache-2.0
"""Metrics of multiple choice: what was answered against what is right.

An answer is the number of an option from 1, or None where a response states none. No answer is wrong, whatever the
metric: it is a false negative of the right class and a false positive of no class.
"""

from collections.abc import Callable, Sequence


def accuracy(answers: Sequence[int | None], gold: Sequence[int]) -> float:
    """Share of right answers."""
    _check(answers, gold)
    return sum(answer == right for answer, right in zip(answers, gold, strict=True)) / len(gold)


# F1 over all classes together, an unanswered row counted as an answer of a class of its own. So every row is one
# prediction: false positives and false negatives are both the wrong rows, and this *is* the accuracy. That is what
# PSPO's evaluation computes (scikit-learn with unreadable answers as class -1).
micro_f1 = accuracy


def macro_f1(answers: Sequence[int | None], gold: Sequence[int]) -> float:
    """Mean F1 of the classes that occur in ``gold``; a class that is never answered has 0."""
    _check(answers, gold)
    scores = []
    for option in sorted(set(gold)):
        right = sum(answer == option == truth for answer, truth in zip(answers, gold, strict=True))
        answered = sum(answer == option for answer in answers)
        scores.append(2 * right / (answered + sum(truth == option for truth in gold)))
    return sum(scores) / len(scores)


def _check(answers: Sequence[int | None], gold: Sequence[int]) -> None:
    if not gold or len(answers) != len(gold):
        raise ValueError(f"{len(answers)} answers for {len(gold)} gold options; there must be one each, at least one")


METRICS: dict[str, Callable[[Sequence[int | None], Sequence[int]], float]] = {
    "accuracy": accuracy,
    "micro_f1": micro_f1,
    "macro_f1": macro_f1,
}
