# SPDX-License-Identifier: Apache-2.0
"""Scores on parts of a benchmark's tests that are published beside its score: ``base`` and ``plus`` of EvalPlus."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from eval.statistics import NoProblems, average


def part_scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any] | None]:
    """The mean score of a response on each part, problem by problem, with its interval.

    Args:
        rows: judged responses with ``problem``, ``score`` (None where the grader could not decide; such are in no mean)
            and ``parts``, which responses without a program do not have: they have 0 on each.

    Returns:
        :class:`eval.statistics.Estimate` by part, ready for JSON; None where nothing could be judged; empty for tasks
        whose tests have no parts.
    """
    found = {}
    for name in dict.fromkeys(name for row in rows for name in row.get("parts", {})):
        problems: dict[str, list[float | None]] = {}
        for row in rows:
            score = None if row["score"] is None else row.get("parts", {}).get(name, 0.0)
            problems.setdefault(row["problem"], []).append(score)
        try:
            found[name] = asdict(average(list(problems.values())))
        except NoProblems:
            found[name] = None
    return found
