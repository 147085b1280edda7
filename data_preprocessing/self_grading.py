# SPDX-License-Identifier: Apache-2.0
"""Whether the gold answer of a row works: the verifier of its source calls it right, and can call others wrong."""

import re
from collections.abc import Mapping
from typing import Any

from prime_ext.verifiers.code.problems import MalformedTests, parse_test_cases
from prime_ext.verifiers.math.complexity_limits import refusal
from prime_ext.verifiers.math.extraction import extract
from prime_ext.verifiers.math.normalize import normalize
from prime_ext.verifiers.sources import TaskVerifier, UnknownSource, choice_options, make_task_verifier, source_of

_PLAIN_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")


def ungradable(answer: str) -> str | None:
    """Why the math verifier could call no response wrong with this gold answer; None if it can.

    Such an answer equals the same text and nothing else, and any other response is the grader's failure.
    """
    if _PLAIN_NUMBER.fullmatch(answer):
        return None
    found = extract(f"\\boxed{{{answer}}}")
    if found.answer != answer.strip():
        return f"in a box it is read as {(found.answer or 'nothing')[:60]!r}"
    return refusal(normalize(answer))


class GoldChecker:
    """Judges gold answers with the verifiers of their sources, which it makes when the first row needs them."""

    def __init__(self) -> None:
        self._verifiers: dict[str, TaskVerifier] = {}

    async def fault(self, data_source: str, gold: str, extra_info: Mapping[str, Any]) -> str | None:
        """What is wrong with a gold answer, or None.

        A program's tests are read, not run: the row has no solution to run.
        """
        try:
            source = source_of(data_source)
        except UnknownSource as error:
            return str(error).partition(";")[0]
        if source.task == "code":
            try:
                parse_test_cases(gold)
            except MalformedTests as error:
                return f"unusable tests: {error}"
            return None
        if source.task == "math":
            reason = ungradable(gold)
            if reason is not None:
                return f"gold answer {gold[:60]!r} cannot be graded: {reason}"
        options = {**source.options, **(choice_options(extra_info) if source.task == "choice" else {})}
        response = f"#### {gold}" if source.task == "choice" else f"\\boxed{{{gold}}}"
        if source.task not in self._verifiers:
            self._verifiers[source.task] = make_task_verifier(source.task)
        verdict = await self._verifiers[source.task].averify(response, gold, **options)
        if not verdict.correct:
            return f"gold answer {gold[:60]!r} is graded {verdict.outcome} against itself: {verdict.detail}"
        return None
