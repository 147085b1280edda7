# SPDX-License-Identifier: Apache-2.0
"""From raw step scores to the results of each task."""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from eval.prm_best_of_n import aggregate, best_of, draw_subsets, pass_at, vote
from eval.prm_inputs import Problem, ProcessBenchItem
from eval.prm_metrics import (
    average_interval,
    first_error,
    fit_threshold,
    mean_interval,
    ordered_pairs,
    pairwise_accuracy,
    processbench_score,
    resampled_f1,
)
from eval.prm_report import best_of_n_report, pairs_report, processbench_report
from eval.prm_scorers import step_scores
from eval.prm_store import OVERLONG
from prime_ext.offline_prm.data import BadData

Results = tuple[dict[str, Any], list[dict[str, Any]], Callable[[dict[str, Any]], str]]
Raw = dict[str, Any]


def selected_scores(arguments: argparse.Namespace, raw: Raw, kind: str, with_reference: bool) -> list[float] | None:
    """Step scores of one response; None if it was too long."""
    if OVERLONG in raw:
        return None
    return step_scores(raw, kind, arguments.coefficient or 1.0, with_reference)


# ---- ProcessBench ------------------------------------------------------------------------------------------------


def processbench_results(
    arguments: argparse.Namespace, items: Sequence[ProcessBenchItem], raw: Sequence[Raw]
) -> Results:
    """F1 with the threshold of one split for all (the official protocol), and with each split's own best one."""
    has_reference = arguments.reference is not None
    scores = [selected_scores(arguments, result, arguments.step_score, has_reference) for result in raw]
    rows_of = {
        split: [row for row, item in enumerate(items) if item.split == split]
        for split in dict.fromkeys(item.split for item in items)
    }
    fitted = {}
    for split, rows in rows_of.items():
        try:
            fitted[split], _ = fit_threshold([scores[row] for row in rows], [items[row].label for row in rows])
        except ValueError as error:
            raise BadData(f"split {split}: {error}; raise --max-length") from error
    protocol = fitted[arguments.threshold_split]
    thresholds = {"protocol": dict.fromkeys(rows_of, protocol), "oracle": fitted}
    if arguments.scorer == "classifier":
        thresholds["own_decision"] = dict.fromkeys(rows_of, 0.5)
    results: dict[str, Any] = {"task": "processbench", "threshold_split": arguments.threshold_split}
    for mode, threshold_of in thresholds.items():
        results[mode] = _f1_of_splits(arguments, items, scores, rows_of, threshold_of)
    results["protocol"]["threshold"] = protocol
    lines = [
        {
            "id": item.id,
            "split": item.split,
            "label": item.label,
            "prediction": first_error(own, protocol),
            "step_scores": own,
        }
        for item, own in zip(items, scores, strict=True)
    ]
    return results, lines, processbench_report


def _f1_of_splits(
    arguments: argparse.Namespace,
    items: Sequence[ProcessBenchItem],
    scores: Sequence[list[float] | None],
    rows_of: dict[str, list[int]],
    threshold_of: dict[str, float],
) -> dict[str, Any]:
    splits, samples = {}, []
    for split, rows in rows_of.items():
        labels = [items[row].label for row in rows]
        predictions = [first_error(scores[row], threshold_of[split]) for row in rows]
        resampled = resampled_f1(predictions, labels, arguments.resamples, arguments.seed)
        samples.append(resampled)
        splits[split] = {
            **asdict(processbench_score(predictions, labels)),
            "f1_interval": asdict(average_interval([resampled])),
            "threshold": threshold_of[split],
            "responses": len(rows),
            "erroneous": sum(label != -1 for label in labels),
        }
    # Splits are resampled with different streams, or their errors would go together.
    rng = np.random.default_rng(arguments.seed)
    shuffled = [rng.permutation(sample) for sample in samples]
    return {
        "splits": splits,
        "average_f1": float(np.mean([own["f1"] for own in splits.values()])),
        "average_f1_interval": asdict(average_interval(shuffled)),
    }


# ---- candidates --------------------------------------------------------------------------------------------------


def response_scores(arguments: argparse.Namespace, raw: Sequence[Raw]) -> dict[str, list[float]]:
    """Scores of all responses by name: every aggregation of every kind of step score, -infinity for too long ones."""
    aggregations = getattr(arguments, "aggregations", "min,sum,last,mean").split(",")
    if arguments.scorer == "classifier":
        kinds = {"": ("", True)}
    else:
        if "product" in aggregations:
            raise BadData("--aggregations product needs probabilities, so --scorer classifier")
        kinds = {"step": ("step", True), "prefix": ("prefix", True), "prefix mean": ("prefix_mean", True)}
        if arguments.reference is None:
            kinds = {name: (kind, False) for name, (kind, _) in kinds.items()}
        else:
            kinds |= {f"{name}, no reference": (kind, False) for name, (kind, _) in kinds.items()}
    named = {}
    for name, (kind, with_reference) in kinds.items():
        of_steps = [selected_scores(arguments, result, kind, with_reference) for result in raw]
        for how in aggregations:
            try:
                values = [-math.inf if own is None else aggregate(own, how) for own in of_steps]
            except ValueError as error:
                raise BadData(f"--aggregations: {error}") from error
            named[f"{how} of {name}" if name else how] = values
    return named


def _by_problem(values: Sequence[Any], problems: Sequence[Problem]) -> list[list[Any]]:
    parts, start = [], 0
    for problem in problems:
        parts.append(list(values[start : start + len(problem.responses)]))
        start += len(problem.responses)
    return parts


def _pairs(arguments: argparse.Namespace, problems: Sequence[Problem], named: dict[str, list[float]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, values in named.items():
        counts = [
            ordered_pairs(own, problem.correct)
            for own, problem in zip(_by_problem(values, problems), problems, strict=True)
        ]
        result = pairwise_accuracy(counts, arguments.resamples, arguments.seed)
        found[name] = result and {"value": result[0], **asdict(result[1]), "pairs": sum(n for _, n in counts)}
    return found


def _candidate_lines(
    problems: Sequence[Problem], named: dict[str, list[float]], raw: Sequence[Raw]
) -> list[dict[str, Any]]:
    lines, number = [], 0
    for problem in problems:
        for position, correct in enumerate(problem.correct):
            finite = {k: v[number] if math.isfinite(v[number]) else None for k, v in named.items()}
            line = {"id": problem.id, "response": position, "correct": correct, "scores": finite, "steps": raw[number]}
            lines.append(line | ({"answer": problem.answers[position]} if problem.answers else {}))
            number += 1
    return lines


def pairs_results(arguments: argparse.Namespace, problems: Sequence[Problem], raw: Sequence[Raw]) -> Results:
    """How often a correct response is ahead of a wrong one to the same problem."""
    named = response_scores(arguments, raw)
    results = {
        "task": "pairs",
        "problems": len(problems),
        "pairwise_accuracy": _pairs(arguments, problems, named),
    }
    return results, _candidate_lines(problems, named, raw), pairs_report


def pool_sizes(wanted: str | None, smallest: int) -> list[int]:
    """The values of N.

    Raises:
        BadData: not whole numbers, or more than there are candidates.
    """
    if wanted is None:
        return [2**k for k in range(smallest.bit_length()) if 2**k <= smallest]
    try:
        sizes = [int(word) for word in wanted.split(",")]
    except ValueError as error:
        raise BadData(f"--n {wanted} must be whole numbers with commas between them") from error
    if min(sizes) < 1 or max(sizes) > smallest:
        raise BadData(f"--n {wanted}: the smallest pool has {smallest} candidates")
    return sizes


def vote_weights(scores: Sequence[float], implicit: bool) -> list[float]:
    """Weights of votes: the sigmoid of an implicit PRM's score, a classifier's as it is; 0 for too long responses.

    Sigmoids are relative to the largest of the pool, which changes no vote: those of very negative scores would all be
    rounded to 0.
    """
    array = np.asarray(scores, dtype=float)
    if not implicit:
        return np.where(np.isneginf(array), 0.0, array).tolist()
    log_sigmoid = -np.logaddexp(0.0, -array)
    highest = log_sigmoid.max()
    return np.exp(log_sigmoid - highest).tolist() if np.isfinite(highest) else [0.0] * len(array)


def best_of_n_results(arguments: argparse.Namespace, problems: Sequence[Problem], raw: Sequence[Raw]) -> Results:
    """Best-of-N and weighted votes for every score, beside pass@N and maj@N."""
    sizes = pool_sizes(arguments.n, min(len(problem.responses) for problem in problems))
    named = response_scores(arguments, raw)
    parts = {name: _by_problem(values, problems) for name, values in named.items()}
    implicit = arguments.scorer == "implicit"
    table: dict[str, dict[str, Any]] = {}
    largest_error = 0.0
    for n in sizes:
        rng = np.random.default_rng([arguments.seed, n])
        # The same subsets for every vote, so that votes are compared on the same draws.
        subsets = [draw_subsets(len(problem.responses), n, arguments.subsets, rng) for problem in problems]
        columns: dict[str, list[float]] = {
            "pass@N": [pass_at(problem.correct, n) for problem in problems],
        }
        votes: dict[str, list[tuple[float, float]]] = {
            "maj@N": [
                vote(problem.answers, [1.0] * len(problem.answers), problem.correct, drawn)
                for problem, drawn in zip(problems, subsets, strict=True)
            ]
        }
        for name, part in parts.items():
            columns[f"best, {name}"] = [
                best_of(own, problem.correct, n) for own, problem in zip(part, problems, strict=True)
            ]
            votes[f"vote, {name}"] = [
                vote(problem.answers, vote_weights(own, implicit), problem.correct, drawn)
                for own, problem, drawn in zip(part, problems, subsets, strict=True)
            ]
        for name, values in columns.items():
            table.setdefault(name, {})[str(n)] = _cell(arguments, values, 0.0)
        for name, pairs in votes.items():
            error = math.sqrt(sum(e * e for _, e in pairs)) / len(pairs)
            largest_error = max(largest_error, error)
            table.setdefault(name, {})[str(n)] = _cell(arguments, [value for value, _ in pairs], error)
    results = {
        "task": "best-of-n",
        "problems": len(problems),
        "n": sizes,
        "best_of_n": table,
        "largest_monte_carlo_error": largest_error,
        "pairwise_accuracy": _pairs(arguments, problems, named),
    }
    return results, _candidate_lines(problems, named, raw), best_of_n_report


def _cell(arguments: argparse.Namespace, values: list[float], monte_carlo_error: float) -> dict[str, float]:
    mean, interval = mean_interval(values, arguments.resamples, arguments.seed)
    return {"value": mean, **asdict(interval), "monte_carlo_error": monte_carlo_error}
