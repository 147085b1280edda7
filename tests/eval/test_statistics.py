# SPDX-License-Identifier: Apache-2.0
"""Statistics of the evaluation, against brute force and against simulated benchmarks."""

import itertools
import math
import operator
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.statistics import (
    average,
    build_equality,
    compare_runs,
    compute_majority_score,
    compute_pass_probability,
    estimate_mean,
    estimate_pass_at_k,
)
from eval.summary import compute_choice_metrics, measure
from prime_ext.tasks.votes import Ballot, count_votes


def test_every_problem_has_the_same_weight_in_the_average():
    estimate = average([[1.0, 0.0, 0.0, 0.0], [1.0], [None, 0.5], [None, None]])
    assert estimate["value"] == pytest.approx((0.25 + 1 + 0.5) / 3)
    assert (estimate["problems"], estimate["left_out"]) == (3, 1)
    # The spread of the problem means, not of the six responses.
    assert estimate["standard_error"] == pytest.approx(
        np.std([0.25, 1, 0.5], ddof=1) / math.sqrt(3)
    )
    alone = average([[1.0, 0.0]])
    assert (
        alone["value"] == 0.5 and alone["standard_error"] is alone["low"] is alone["high"] is None
    )
    assert average([[None]]) is None and estimate_pass_at_k([[None]], 1) is None


def test_intervals_at_both_ends_have_width_and_stay_inside():
    perfect = average([[1.0]] * 30)
    hopeless = average([[0.0]] * 30)
    assert perfect["standard_error"] == 0 and perfect["high"] == 1.0 and 0.85 < perfect["low"] < 0.9
    assert hopeless["low"] == 0.0 and hopeless["high"] == pytest.approx(1 - perfect["low"])


@pytest.mark.parametrize("values", [[1.5], [-0.1, 0], [float("nan")]])
def test_what_is_no_score_is_refused(values):
    with pytest.raises(ValueError, match="scores must be in"):
        estimate_mean(values, len(values))


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_counts_subsets_with_a_correct_response(right, data):
    k = data.draw(st.integers(1, len(right)))
    subsets = list(itertools.combinations(right, k))
    assert compute_pass_probability(len(right), sum(right), k) == pytest.approx(
        sum(map(any, subsets)) / len(subsets)
    )


def test_pass_at_k_over_problems():
    scores = [[1.0, 0.0, 0.0, 0.5], [0.0] * 4, [None, 1.0, 1.0, None], [None, None, None, 1.0]]
    estimate = estimate_pass_at_k(scores, 2)
    assert estimate["value"] == pytest.approx((0.5 + 0 + 1) / 3) and (
        estimate["problems"],
        estimate["left_out"],
    ) == (3, 1)
    # Whole numbers: no rounding where they are large.
    assert compute_pass_probability(4000, 1, 2000) == 0.5
    # Two draws of two from four responses are independent.
    assert estimate_pass_at_k([[1.0, 1.0, 0.0, 0.0]] * 30, 2) == estimate_mean([5 / 6] * 30, 60)
    with pytest.raises(
        ValueError, match="k=5 must be from 1 to the number of responses per problem, 4"
    ):
        estimate_pass_at_k(scores, 5)


def _majority_by_hand(answers, scores, k):
    """Count by hand: all draws of k, all winners of each."""
    total = 0.0
    draws = list(itertools.combinations(range(len(answers)), k))
    for draw in draws:
        votes = Counter(answers[i] for i in draw if answers[i] is not None)
        first = [answer for answer, number in votes.items() if number == max(votes.values())]
        total += sum(scores[answer] for answer in first) / len(first) if first else 0.0
    return total / len(draws)


@given(st.lists(st.sampled_from([None, "a", "b", "c", "d"]), min_size=1, max_size=9), st.data())
def test_the_majority_is_exact_over_all_draws(answers, data):
    k = data.draw(st.integers(1, len(answers)))
    scores = {"a": 1.0, "b": 0.0, "c": 0.25, "d": 0.0}
    ballot = count_votes(answers, [scores.get(answer, 0.0) for answer in answers], operator.eq)
    assert compute_majority_score(ballot, k) == pytest.approx(_majority_by_hand(answers, scores, k))


def test_the_majority_of_64_responses_is_counted_exactly_and_soon():
    # By symmetry each of eight answers with equal votes wins as often.
    assert compute_majority_score(Ballot((8,) * 8, (1.0,) + (0.0,) * 7, 0), 16) == pytest.approx(
        1 / 8
    )


def test_mathematics_votes_by_the_equality_of_the_verifier():
    same = build_equality()
    answers = ["1/2", "0.5", r"\frac{1}{2}", "2", None, r"\frac12", "x", ""]
    ballot = count_votes(answers, [1.0, 1.0, 1.0, 0.0, 0.0, None, 0.0, 0.0], same)
    assert ballot == Ballot((3, 1, 1, 1), (1.0, 0.0, 0.0, 0.0), 1)
    # An exact answer rounds to a decimal, but is not the same as each decimal that it rounds to.
    assert not same("1/3", "0.33") and not same("0.33", "1/3")


def _coverage(design, runs=1000):
    """Return the share of draws (truth, estimate) of ``design`` whose interval holds the truth."""
    generator = np.random.default_rng(0)
    draws = [design(generator) for _ in range(runs)]
    return np.mean([estimate["low"] <= truth <= estimate["high"] for truth, estimate in draws])


@pytest.mark.parametrize(
    ("problems", "n", "a", "b", "k"),
    [(30, 1, 1, 3, 0), (30, 16, 0.3, 0.7, 0), (83, 4, 0.5, 0.5, 0), (30, 64, 0.1, 0.4, 0),
    (40, 16, 0.5, 2, 4),
     (40, 8, 0.5, 2, 8)],
)  # fmt: skip
def test_intervals_of_averages_and_pass_at_k_cover_the_truth(problems, n, a, b, k):
    """Draw difficulties from Beta(a, b) and n responses each; ``k`` is 0 for the average."""
    difficulties = np.random.default_rng(1).beta(a, b, 400_000)
    truth = (1 - (1 - difficulties) ** k).mean() if k else a / (a + b)

    def design(generator):
        correct = generator.binomial(n, generator.beta(a, b, problems))
        scores = [[1.0] * int(c) + [0.0] * int(n - c) for c in correct]
        return truth, estimate_pass_at_k(scores, k) if k else average(scores)

    assert 0.93 <= _coverage(design) <= 0.985


@pytest.mark.parametrize(("problems", "n", "growth"), [(60, 1, 0.2), (30, 16, 0.1), (100, 1, 0.0)])
def test_the_paired_interval_holds_the_truth(problems, n, growth):
    def chances(generator, number):
        ability = generator.beta(0.5, 0.8, number)
        return ability, np.clip(ability + growth * generator.beta(1, 1, number), 0, 1)

    before, after = chances(np.random.default_rng(7), 400_000)
    truth = (after - before).mean()

    def design(generator):
        drawn = [
            (generator.random((problems, n)) < chance[:, None]).astype(float)
            for chance in chances(generator, problems)
        ]
        return truth, compare_runs(
            *({str(i): row for i, row in enumerate(run.tolist())} for run in drawn)
        )

    assert 0.92 <= _coverage(design, runs=400) <= 0.995


def test_flipped_problems_are_named_with_both_scores():
    before = {"a": [1.0, 0.0], "b": [1.0], "c": [1.0], "d": [None], "e": [0.0]}
    after = {"a": [1.0], "b": [0.0], "c": [1.0], "d": [1.0], "e": [1.0, 0.0]}
    comparison = compare_runs(before, after)
    # A problem with half of its responses correct is not solved.
    assert comparison["gained"] == [{"problem": "a", "before": 0.5, "after": 1.0}]
    assert [flip["problem"] for flip in comparison["lost"]] == ["b"]
    assert (comparison["difference"], comparison["problems"], comparison["left_out"]) == (0.0, 4, 1)
    assert compare_runs({"a": [None]}, {"a": [1.0]}) is None


def test_intervals_of_differences_follow_newcombe_even_with_nothing_solved():
    nothing = {str(i): [0.0] for i in range(30)}
    comparison = compare_runs(nothing, nothing)
    alone = average([[0.0]] * 30)
    assert (comparison["low"], comparison["high"]) == (-alone["high"], alone["high"])
    before = {str(i): [float(i < 40)] for i in range(100)}
    after = {str(i): [float(i < 30 or i >= 85)] for i in range(100)}
    estimates = [average(list(run.values())) for run in (after, before)]
    (p, low, high), (q, other_low, other_high) = (
        [estimate[name] for name in ("value", "low", "high")] for estimate in estimates
    )
    # phi of 30 problems that both solve, 15 and 10 that one solves, and a half in each direction.
    phi = (100 * (0.3 - p * q) - 0.5) / math.sqrt(
        (100 * p * (1 - p) + 0.5) * (100 * q * (1 - q) + 0.5)
    )
    below = math.sqrt(
        (p - low) ** 2 - 2 * phi * (p - low) * (other_high - q) + (other_high - q) ** 2
    )
    above = math.sqrt(
        (high - p) ** 2 - 2 * phi * (high - p) * (q - other_low) + (q - other_low) ** 2
    )
    comparison = compare_runs(before, after)
    assert comparison["difference"] == pytest.approx(0.05)
    assert [comparison["low"], comparison["high"]] == pytest.approx([0.05 - below, 0.05 + above])


def _sample(score, answer, tokens, truncated=False):
    row = {"score": score, "extracted": answer, "tokens": tokens, "truncated": truncated}
    return {**row, "grader_failure": score is None, "gold": "1"}


GROUPS = {
    "1": {"subject": "A", "level": "1"},
    "2": {"subject": "A", "level": "2"},
    "3": {"subject": "G"},
}
SAMPLES = {
    ("1", 0): _sample(1.0, "3", 10),
    ("1", 1): _sample(0.0, "4", 20),
    ("2", 0): _sample(1.0, "x", 30),
    ("2", 1): _sample(1.0, "x", 30),
    ("3", 0): _sample(0.0, None, 60, True),
    ("3", 1): _sample(None, "9", 30),
}


def test_a_summary_has_scores_rates_and_groups():
    summary = measure("math", 2, GROUPS, SAMPLES, ks=(1, 2))["summary"]
    assert list(summary["scores"]) == ["avg@2", "pass@1", "pass@2", "maj@1", "maj@2"]
    assert summary["scores"]["avg@2"]["value"] == 0.5
    assert (
        summary["scores"]["pass@2"]["value"] == 1.0 and summary["scores"]["pass@2"]["left_out"] == 1
    )
    assert summary["scores"]["maj@2"]["value"] == 0.75
    assert (
        summary["problems"] == 3
        and summary["samples_per_problem"] == 2
        and summary["grader_failures"] == 1
    )
    assert summary["no_answer"] == summary["truncated"] == 1 / 6
    assert summary["tokens"] == {"mean": 30.0, "median": 30.0, "most": 60}
    assert summary["groups"]["subject"]["A"]["value"] == 0.75
    assert summary["groups"]["subject"]["G"]["value"] == 0.0
    assert list(summary["groups"]["level"]) == ["1", "2"]


def test_failed_responses_count_in_no_mean_and_no_share():
    summary = measure("math", 2, {"1": {}, "2": {}}, {("1", 0): _sample(1.0, "1", 5, True)})[
        "summary"
    ]
    assert summary["scores"]["avg@2"]["value"] == 1 and summary["scores"]["avg@2"]["left_out"] == 1
    assert (
        summary["truncated"] == 1 and summary["no_answer"] == 0 and summary["grader_failures"] == 0
    )
    assert measure("math", 1, {"1": {}}, {})["summary"]["scores"] == {"avg@1": None}


@given(st.lists(st.tuples(st.sampled_from([None, 1, 2, 3]), st.integers(1, 3)), min_size=1))
def test_metrics_of_choice_are_those_of_scikit_learn(pairs):
    """Micro-F1 counts all classes, also unanswered rows; macro-F1 those of the gold answers."""
    answers, gold = zip(*pairs, strict=True)
    hits = {c: sum(a == c == g for a, g in pairs) for c in {*answers, *gold}}
    answered = Counter(answers)
    there = Counter(gold)
    micro = 2 * sum(hits.values()) / sum((answered + there).values())
    macro = sum(2 * hits[c] / (answered[c] + there[c]) for c in there) / len(there)
    metrics = compute_choice_metrics(answers, gold)
    assert metrics["accuracy"] == metrics["micro_f1"] == pytest.approx(micro)
    assert metrics["macro_f1"] == pytest.approx(macro)
