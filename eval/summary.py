# SPDX-License-Identifier: Apache-2.0
"""Summary of a run on one task: scores with intervals, rates, and avg@n by subject and level."""

import operator
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prime_ext.tasks.benchmark_task import CHOICE_METRICS
from prime_ext.tasks.votes import count_votes
from prime_ext.utils.run_store import Row

from .environment_task import GRADER
from .results import Key
from .statistics import (
    Estimate,
    Scores,
    average,
    build_equality,
    estimate_any_mean,
    estimate_majority_at_k,
    estimate_mean,
    estimate_pass_at_k,
)


def measure(
    grader: str,
    n: int,
    groups: Mapping[str, Mapping[str, str]],
    samples: Mapping[Key, Row],
    ks: Sequence[int] = (),
) -> dict[str, Any]:
    """Return all numbers of a run on one task, ready for JSON.

    Args:
        grader: ``math``, ``code``, ``choice`` or ``environment``; only answers vote for maj@k.
        n: responses per problem.
        groups: by which results are broken down, by problem id, e.g. ``{"level": "5"}``.
        samples: the lines of ``samples.jsonl`` by problem and number. Responses that failed have
            none; they are in no mean and in none of the shares.
        ks: the k of pass@k and maj@k.

    Returns:
        ``summary``: counts, ``scores`` (``avg@n``, ``pass@k``, ``maj@k``: an
        :class:`eval.statistics.Estimate`, or None where no problem has enough judged responses),
        ``no_answer`` and ``truncated`` (shares of the responses), ``tokens``, and ``groups``
        (``avg@n`` by subject, level and so on). ``choice``: metrics of multiple choice. Only of
        environments ``episodes``: means of reward, turns and invalid moves, and failures.

    Raises:
        ValueError: no problems, or a k above ``n``.
    """
    if not groups:
        raise ValueError("there is no problem")
    rows = {problem: [samples.get((problem, number)) for number in range(n)] for problem in groups}
    scores = {
        problem: [None if row is None else row["score"] for row in problem_rows]
        for problem, problem_rows in rows.items()
    }
    there = [row for problem_rows in rows.values() for row in problem_rows if row is not None]
    tokens = [row["tokens"] for row in there] or [0]
    responses = max(1, len(there))
    of_k: dict[str, Any] = {f"pass@{k}": estimate_pass_at_k(list(scores.values()), k) for k in ks}
    if ks and grader in ("math", "choice"):
        same = build_equality() if grader == "math" else operator.eq
        answers = {
            problem: [None if row is None else row["extracted"] for row in problem_rows]
            for problem, problem_rows in rows.items()
        }
        ballots = [count_votes(answers[problem], scores[problem], same) for problem in groups]
        of_k |= {f"maj@{k}": estimate_majority_at_k(ballots, k) for k in ks}
    of_episodes = {"episodes": measure_episodes(rows)} if grader == GRADER else {}
    return {
        "summary": {
            "problems": len(groups),
            "samples_per_problem": n,
            "grader_failures": sum(row["score"] is None for row in there),
            "scores": {f"avg@{n}": average(list(scores.values())), **of_k},
            "no_answer": sum(row["extracted"] is None for row in there) / responses,
            "truncated": sum(row["truncated"] for row in there) / responses,
            "tokens": {
                "mean": statistics.fmean(tokens),
                "median": statistics.median(tokens),
                "most": max(tokens),
            },
            "groups": _average_groups(groups, scores),
        },
        "choice": _average_choice_metrics(n, rows) if grader == "choice" else None,
        **of_episodes,
    }


def measure_episodes(rows: Mapping[str, Sequence[Row | None]]) -> dict[str, Any]:
    """Return estimates for the episodes of problems, and how often the environment failed.

    ``reward`` is the sum over turns, ``invalid`` the share of an episode's turns that were not
    valid actions. Episodes in which the environment failed are in no mean; ``failures`` counts
    them by outcome.
    """
    judged: list[list[Sequence[Row]]] = []
    failures: Counter[str] = Counter()
    for problem_rows in rows.values():
        there = [row for row in problem_rows if row is not None]
        failures.update(row["verdict"] for row in there if row["grader_failure"])
        judged.append([row["turns"] for row in there if row["turns"] and not row["grader_failure"]])

    def compute_means(measure_turns: Callable[[Sequence[Row]], float]) -> list[float]:
        return [statistics.fmean(map(measure_turns, episodes)) for episodes in judged if episodes]

    def compute_invalid_share(turns: Sequence[Row]) -> float:
        return statistics.fmean(turn["invalid"] for turn in turns)

    turns = sum(len(turns) for episodes in judged for turns in episodes)
    left_out = sum(not episodes for episodes in judged)
    rewards = compute_means(lambda turns: sum(turn["reward"] for turn in turns))
    return {
        "reward": estimate_any_mean(rewards, left_out),
        "turns": estimate_any_mean(compute_means(len), left_out),
        "invalid": estimate_mean(compute_means(compute_invalid_share), turns, left_out),
        "failures": dict(failures),
    }


def _average_groups(
    groups: Mapping[str, Mapping[str, str]], scores: Mapping[str, Scores]
) -> dict[str, dict[str, Estimate | None]]:
    """Return ``avg@n`` for each value of each group, the values in order."""
    parts: dict[str, dict[str, list[Scores]]] = {}
    for problem, labels in groups.items():
        for name, value in labels.items():
            parts.setdefault(name, {}).setdefault(value, []).append(scores[problem])
    return {
        name: {value: average(members) for value, members in sorted(values.items())}
        for name, values in parts.items()
    }


def _average_choice_metrics(
    n: int, rows: Mapping[str, Sequence[Row | None]]
) -> dict[str, float] | None:
    """Return metrics of multiple choice: means over rounds of one response to each problem."""
    rounds = []
    for number in range(n):
        judged = [
            row
            for problem_rows in rows.values()
            if (row := problem_rows[number]) is not None and not row["grader_failure"]
        ]
        answers = [None if row["extracted"] is None else int(row["extracted"]) for row in judged]
        if judged:
            rounds.append((answers, [int(row["gold"]) for row in judged]))
    if not rounds:
        return None
    return {
        name: statistics.fmean(compute_choice_metrics(*pair)[name] for pair in rounds)
        for name in CHOICE_METRICS
    }


def compute_choice_metrics(answers: Sequence[int | None], gold: Sequence[int]) -> dict[str, float]:
    """Score the options that responses choose, from 1, or None, against the right ones.

    There is at least one of each. No answer is a false negative of the right option and a false
    positive of none. Micro-F1 counts an unanswered row as an answer of a class of its own, as
    PSPO's evaluation does, so it is the accuracy. Macro-F1 is the mean over the options that occur
    in ``gold``; one that is never answered has 0.
    """
    pairs = list(zip(answers, gold, strict=True))
    accuracy = sum(answer == right for answer, right in pairs) / len(pairs)
    f1 = []
    for option in sorted(set(gold)):
        right = sum(answer == option == truth for answer, truth in pairs)
        answered = sum(answer == option for answer, _ in pairs)
        f1.append(2 * right / (answered + sum(truth == option for _, truth in pairs)))
    return {"accuracy": accuracy, "micro_f1": accuracy, "macro_f1": sum(f1) / len(f1)}
