# SPDX-License-Identifier: Apache-2.0
"""Results of each task of ``eval.prm`` from raw step scores, and their reports."""

import argparse
import math
import operator
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from prime_ext.generate.prm_description import compute_right_probability
from prime_ext.tasks.votes import count_votes
from prime_ext.utils.report_page import Page
from prime_ext.utils.run_store import Row, RunError

from .formats import NONE, format_interval, format_percent
from .intervals import compute_percentiles, resample, resample_mean
from .prm_data import LabeledProblem, PrmBenchItem, ProcessBenchItem
from .prm_metrics import (
    AGGREGATIONS,
    compute_best_of,
    compute_prm_score,
    count_ordered_pairs,
    count_steps,
    find_best_prm_score,
    find_error,
    fit_threshold,
    pairwise_accuracy,
    resample_f1,
    score_processbench,
)
from .prm_scorers import SCORE_KINDS, score_steps
from .statistics import compute_majority_score, compute_pass_probability

# What results.json holds, and the lines of items.jsonl.
Results = tuple[dict[str, Any], list[dict[str, Any]]]
_MODES = {
    "protocol": "Official protocol: one threshold, the best on {}, for all splits",
    "oracle": (
        "Oracle thresholds: each split's own best (chosen on its labels; not comparable with the"
        " protocol)"
    ),
}
# Dimensions of PRMBench, their classes as the data spells them, and the leaderboard's columns.
DIMENSIONS = {
    "simplicity": {"redundency": "NR", "circular": "NCL"},
    "soundness": {
        "counterfactual": "ES",
        "step_contradiction": "SC",
        "domain_inconsistency": "DC",
        "confidence": "CI",
    },
    "sensitivity": {"missing_condition": "PS", "deception": "DR", "multi_solutions": "MS"},
}
TITLES = {"processbench": "ProcessBench", "prmbench": "PRMBench", "best-of-n": "Best of N"}
_OF_PROBABILITIES = ("min", "mean", "last", "product")
# The scores that are printed, all others being in the report; the first chooses. An implicit PRM is
# trained on its sum.
SHOWN = {
    "implicit": ("sum of step", "mean of step", "min of step", "min of prefix"),
    "classifier": _OF_PROBABILITIES,
    "step_rm": _OF_PROBABILITIES,
}


# ---- ProcessBench --------------------------------------------------------------------------------


def measure_processbench(
    arguments: argparse.Namespace, items: Sequence[ProcessBenchItem], raw: Sequence[Row]
) -> Results:
    """Return F1 by the official protocol, and with each split's own best threshold.

    The protocol has the threshold of one split for all. Raises ``RunError``: all responses of a
    split are too long.
    """
    how = (arguments.step_score, arguments.coefficient, arguments.reference is not None)
    scores = [score_steps(result, *how) for result in raw]
    splits: dict[str, list[int]] = {}
    for row, item in enumerate(items):
        splits.setdefault(item.split, []).append(row)
    fitted = {}
    for split, rows in splits.items():
        try:
            fitted[split], _ = fit_threshold(
                [scores[row] for row in rows], [items[row].label for row in rows]
            )
        except ValueError as error:
            raise RunError(f"split {split}: {error}; raise --max-length") from error
    protocol = fitted[arguments.threshold_split]
    thresholds = {"protocol": dict.fromkeys(splits, protocol), "oracle": fitted}
    results: dict[str, Any] = {"task": "processbench", "threshold_split": arguments.threshold_split}
    for mode, threshold_of in thresholds.items():
        by_split = {}
        samples = []
        for split, rows in splits.items():
            labels = [items[row].label for row in rows]
            predictions = [find_error(scores[row], threshold_of[split]) for row in rows]
            samples.append(resample_f1(predictions, labels, arguments.resamples, arguments.seed))
            by_split[split] = {
                **score_processbench(predictions, labels),
                "f1_interval": compute_percentiles(samples[-1]),
                "threshold": threshold_of[split],
                "responses": len(rows),
                "erroneous": sum(label != -1 for label in labels),
            }
        # Splits are resampled with different streams, or their errors would go together.
        rng = np.random.default_rng(arguments.seed)
        average = np.mean([rng.permutation(sample) for sample in samples], axis=0)
        results[mode] = {
            "splits": by_split,
            "average_f1": float(np.mean([split["f1"] for split in by_split.values()])),
            "average_f1_interval": compute_percentiles(average),
        }
    results["protocol"]["threshold"] = protocol
    lines = []
    for item, steps in zip(items, scores, strict=True):
        line = {"id": item.id, "split": item.split, "label": item.label}
        lines.append({**line, "prediction": find_error(steps, protocol), "step_scores": steps})
    return results, lines


# ---- PRMBench ------------------------------------------------------------------------------------


def measure_prmbench(
    arguments: argparse.Namespace, items: Sequence[PrmBenchItem], raw: Sequence[Row]
) -> Results:
    """Return PRMScore of each class, the means of the dimensions, and PRMScore of all steps.

    Responses that are too long are left out, as in the released code. Raises ``RunError``: all are.
    """
    how = (arguments.step_score, arguments.coefficient, arguments.reference is not None)
    scores = [score_steps(result, *how) for result in raw]
    rows = [row for row, steps in enumerate(scores) if steps is not None]
    if not rows:
        raise RunError("all responses are too long; raise --max-length")
    right = [items[row].right for row in rows]
    count_R4 = np.array(
        [count_steps(scores[row], items[row].right, arguments.threshold) for row in rows]
    )
    kinds = [items[row].split for row in rows]
    classes = {}
    for kind in (*dict.fromkeys(kinds), "overall"):
        count_X4 = count_R4 if kind == "overall" else count_R4[[other == kind for other in kinds]]
        samples = compute_prm_score(
            count_X4[resample(len(count_X4), arguments.resamples, arguments.seed)].sum(1)
        )
        classes[kind] = {
            **{name: float(value) for name, value in compute_prm_score(count_X4.sum(0)).items()},
            "prm_score_interval": compute_percentiles(samples["prm_score"]),
            "responses": len(count_X4),
            "steps": int(count_X4.sum()),
            "wrong_steps": int(count_X4[:, 2:].sum()),
        }
    best_threshold, best = find_best_prm_score([scores[row] for row in rows], right)
    means = {
        name: float(np.mean([classes[kind]["prm_score"] for kind in members]))
        for name, members in DIMENSIONS.items()
        if members.keys() <= classes.keys()
    }
    results = {
        "task": "prmbench",
        "threshold": arguments.threshold,
        "classes": classes,
        "dimensions": means,
    }
    results["best_threshold"] = {"threshold": best_threshold, "prm_score": best}
    pairs = zip(items, scores, strict=True)
    return results, [
        {"id": x.id, "split": x.split, "right": x.right, "step_scores": steps} for x, steps in pairs
    ]


# ---- candidates ----------------------------------------------------------------------------------


def score_responses(arguments: argparse.Namespace, raw: Sequence[Row]) -> dict[str, list[float]]:
    """Return scores of all responses by name: every aggregation of every kind of step score.

    Responses that are too long have -infinity. Products are of probabilities, which only
    classifiers give.
    """
    aggregations = [
        how for how in AGGREGATIONS if how != "product" or arguments.scorer != "implicit"
    ]
    kinds = {"": ("", True)}
    if arguments.scorer == "implicit":
        with_reference = arguments.reference is not None
        kinds = {kind: (kind, with_reference) for kind in SCORE_KINDS}
        if with_reference:
            kinds |= {f"{kind}, no reference": (kind, False) for kind in SCORE_KINDS}
    named = {}
    for name, (kind, with_reference) in kinds.items():
        of_steps = [
            score_steps(result, kind, arguments.coefficient, with_reference) for result in raw
        ]
        for how in aggregations:
            named[f"{how} of {name}" if name else how] = [
                -math.inf if scores is None else float(AGGREGATIONS[how](np.asarray(scores)))
                for scores in of_steps
            ]
    return named


def measure_candidates(
    arguments: argparse.Namespace,
    problems: Sequence[LabeledProblem],
    raw: Sequence[Row],
    description: Mapping[str, Any],
) -> Results:
    """Return best-of-N of every score, pass@N, maj@N and pairwise accuracy, if there are labels.

    Each line has ``chosen``, whether the PRM chooses the candidate, and its probability of being
    right where ``description`` gives one.
    """
    named = score_responses(arguments, raw)
    starts = [0, *np.cumsum([len(problem.responses) for problem in problems])]
    by_problem = {
        name: [values[a:b] for a, b in pairwise(starts)] for name, values in named.items()
    }
    results: dict[str, Any] = {"task": arguments.task, "problems": len(problems)}
    if problems[0].correct is not None:
        results |= _measure(arguments, problems, by_problem)
    judge = SHOWN[arguments.scorer][0]
    chosen = {
        start + int(np.argmax(scores))
        for start, scores in zip(starts[:-1], by_problem[judge], strict=True)
    }
    # Of the rewards that it was trained on.
    trained = (arguments.reference, arguments.coefficient) == (
        description.get("reference"),
        description.get("beta"),
    )
    lines = []
    places = [(problem, index) for problem in problems for index in range(len(problem.responses))]
    for number, (problem, index) in enumerate(places):
        scores = {
            name: values[number] if math.isfinite(values[number]) else None
            for name, values in named.items()
        }
        line = {"id": problem.id, "response": index, "chosen": number in chosen, "scores": scores}
        line["correct"] = None if problem.correct is None else problem.correct[index]
        if trained and scores[judge] is not None:
            line["probability"] = compute_right_probability(description, scores[judge])
        lines.append({**line, "steps": raw[number], "answer": problem.answers[index]})
    return results, lines


def _measure(
    arguments: argparse.Namespace,
    problems: Sequence[LabeledProblem],
    by_problem: Mapping[str, Sequence[Sequence[float]]],
) -> dict[str, Any]:
    """Measure the scores of problems with labels; ``by_problem`` has them by name and problem."""
    sizes = [
        2**power
        for power in range(min(len(problem.responses) for problem in problems).bit_length())
    ]
    ballots = [
        count_votes(problem.answers, [float(hit) for hit in problem.correct], operator.eq)
        for problem in problems
    ]
    how = (arguments.resamples, arguments.seed)
    table: dict[str, dict[str, Any]] = {}
    for n in sizes:
        columns = {
            "pass@N": [
                compute_pass_probability(len(problem.correct), sum(problem.correct), n)
                for problem in problems
            ],
            "maj@N": [compute_majority_score(ballot, n) for ballot in ballots],
        }
        for name, problem_scores in by_problem.items():
            zipped = zip(problem_scores, problems, strict=True)
            columns[f"best, {name}"] = [
                compute_best_of(scores, problem.correct, n) for scores, problem in zipped
            ]
        for name, values in columns.items():
            table.setdefault(name, {})[str(n)] = resample_mean(values, *how)
    ahead = {}
    for name, problem_scores in by_problem.items():
        counts = [
            count_ordered_pairs(scores, problem.correct)
            for scores, problem in zip(problem_scores, problems, strict=True)
        ]
        ahead[name] = pairwise_accuracy(counts, *how)
    return {"n": sizes, "best_of_n": table, "pairwise_accuracy": ahead}


# ---- reports -------------------------------------------------------------------------------------


def _format_share(estimate: Mapping[str, Any] | None, value: float | None = None) -> str:
    """Format a share in percent with its 95 % interval."""
    if estimate is None:
        return NONE
    share = estimate["value"] if value is None else value
    return f"{format_percent(share)} ({format_interval(estimate)})"


def format_prm_report(results: Mapping[str, Any], short: bool = False) -> str:
    """Return the results of any task as Markdown; of candidates ``short`` shows six rows."""
    settings = results["settings"]
    task = results["task"]
    page = Page(TITLES[task])
    page.text(f"Model: {settings['model']}")
    if settings["scorer"] == "implicit":
        page.text(
            f"Reference: {settings['reference'] or 'none'}, coefficient {settings['coefficient']:g}"
        )
    page.text(
        "Versions: "
        + ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    )
    if settings["limit"]:
        what = {"processbench": "responses of each split", "prmbench": "responses"}.get(
            task, "problems"
        )
        page.text(f"Only a random sample of {settings['limit']} {what} was scored.")
    if task == "processbench":
        _add_processbench(page, results)
    elif task == "prmbench":
        _add_prmbench(page, results)
    else:
        _add_candidates(page, results, short)
    if results["overlong"]:
        fate = {"processbench": "count as wrong", "prmbench": "are left out"}.get(
            task, "are chosen last"
        )
        unscored = {"labels": "have no label"}.get(
            settings["scorer"], "were longer than --max-length"
        )
        page.text(f"{results['overlong']} responses {unscored}; they {fate}.")
    return page.markdown()


def _add_processbench(page: Page, results: Mapping[str, Any]) -> None:
    settings = results["settings"]
    for mode, title in _MODES.items():
        page.heading(title.format(results["threshold_split"]))
        rows = [
            [
                split,
                str(numbers["responses"]),
                format_percent(numbers["error_accuracy"]),
                format_percent(numbers["correct_accuracy"]),
                _format_share(numbers["f1_interval"], numbers["f1"]),
                f"{numbers['threshold']:.6g}",
            ]
            for split, numbers in results[mode]["splits"].items()
        ]
        average = _format_share(results[mode]["average_f1_interval"], results[mode]["average_f1"])
        head = [
            "split",
            "responses",
            "error accuracy",
            "correct accuracy",
            "F1 (95 %)",
            "threshold",
        ]
        page.table(head, [*rows, ["average", "", "", "", average, ""]])
    page.text(
        "Percent. F1 is the harmonic mean of the two accuracies, the average the plain mean of the"
        f" splits' F1. Intervals resample responses {settings['resamples']} times with the"
        " threshold held fixed; what choosing the threshold adds is not in them. Step score:"
        f" {settings['step_score']}. Step judged wrong: score below the threshold, strictly."
    )


def _add_prmbench(page: Page, results: Mapping[str, Any]) -> None:
    settings = results["settings"]
    best = results["best_threshold"]
    columns = {
        kind: f"{kind} ({short})" for names in DIMENSIONS.values() for kind, short in names.items()
    }
    rows = [
        [
            columns.get(kind, kind),
            str(numbers["responses"]),
            str(numbers["wrong_steps"]),
            format_percent(numbers["f1"]),
            format_percent(numbers["negative_f1"]) if numbers["wrong_steps"] else NONE,
            _format_share(numbers["prm_score_interval"], numbers["prm_score"]),
        ]
        for kind, numbers in results["classes"].items()
    ]
    rows += [
        [f"mean of {name}", "", "", "", "", format_percent(value)]
        for name, value in results["dimensions"].items()
    ]
    page.table(["class", "responses", "wrong steps", "F1", "negative F1", "PRMScore (95 %)"], rows)
    page.text(
        "Percent. F1 is that of right steps, negative F1 that of wrong steps, PRMScore their mean"
        " (F1 where no step is wrong); overall pools all steps. Step judged right: score above"
        f" {results['threshold']:g}, strictly; the best threshold for these labels,"
        f" {best['threshold']:.6g}, would give {format_percent(best['prm_score'])} overall."
        f" Intervals resample responses {settings['resamples']} times."
    )


def _add_candidates(page: Page, results: Mapping[str, Any], short: bool) -> None:
    shown = SHOWN[results["settings"]["scorer"]]
    page.text(
        f"items.jsonl names the candidate with the highest {shown[0]} of each problem: chosen."
    )
    if "best_of_n" not in results:
        page.text(f"The {results['problems']} problems have no labels, so nothing is measured.")
        return
    sizes = [str(n) for n in results["n"]]
    rows = [
        [name, *(_format_share(estimates[n]) for n in sizes)]
        for name, estimates in results["best_of_n"].items()
    ]
    if short:
        shown_names = ["pass@N", "maj@N", *(f"best, {name}" for name in shown)]
        rows = [row for row in rows if row[0] in shown_names]
    page.table(["", *(f"N={n}" for n in sizes)], rows)
    page.text(
        f"Percent of {results['problems']} problems (95 % interval over problems,"
        f" {results['settings']['resamples']} resamples), each the expectation over all subsets of"
        " N candidates."
    )
    if short:
        return
    page.heading("Pairwise accuracy")
    pairs = results["pairwise_accuracy"].items()
    lines = [
        [name, _format_share(accuracy), str(accuracy["pairs"]) if accuracy else "0"]
        for name, accuracy in pairs
    ]
    page.table(["score", "ordered correctly (95 %)", "pairs"], lines)
