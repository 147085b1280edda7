# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
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
