# SPDX-License-Identifier: Apache-2.0
"""Queries to the verifiers: is a response right, and can they use a gold answer?"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from prime_ext.verifiers import Verdict
from prime_ext.verifiers.code.cases import MalformedTests, parse_test_cases
from prime_ext.verifiers.gym_verifier import read_problem
from prime_ext.verifiers.judging import Query, judge_all, judge_response, make_verifier
from prime_ext.verifiers.math.answer_extraction import extract
from prime_ext.verifiers.math.math_verifier import MathVerifier
from prime_ext.verifiers.math.structure import Leaf, find_unread, read
from prime_ext.verifiers.sources import BUILT_IN, UnknownSource, choice_options, find_source
from prime_ext.verifiers.verdict import correct

# It equals no gold answer, and rules cannot decide it. The time suffices on a busy machine.
_NO_ANSWER = r"q_{0}+\sqrt{13}"
_SECONDS = 60.0
_PLAIN_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")


@dataclass(frozen=True)
class Judge:
    """A question to the verifier of a data source: is the response right?"""

    data_source: str
    response: str
    gold: str
    extra_info: Mapping[str, Any] = field(default_factory=dict)


def get_verdicts(judges: Sequence[Judge]) -> list[Verdict]:
    """Return the verdicts in order. UnknownSource: a data source has no verifier."""
    return judge_all(list(map(_make_query, judges)))


async def get_verdict(judge: Judge) -> Verdict:
    """Return one verdict."""
    return await judge_response(_make_query(judge))


def _make_query(judge: Judge) -> Query:
    source = find_source(judge.data_source)
    options = dict(source.options)
    if source.task == "choice":
        options.update(choice_options(judge.extra_info))
    return Query(make_verifier(source.task), judge.response, judge.gold, options)


async def find_gold_fault(data_source: str, gold: str, extra_info: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a gold answer, or None. Tests of programs are read, not run."""
    try:
        task = find_source(data_source).task
    except UnknownSource as error:
        return str(error).partition(";")[0]
    if task not in BUILT_IN:
        # Only their verifier can tell what a right response is, but it must judge.
        try:
            make_verifier(task)
        except Exception as error:
            return f"the verifier {task!r} cannot be made: {type(error).__name__}: {error}"
        verdict = await get_verdict(Judge(data_source, gold, gold, extra_info))
        return f"the verifier {task!r} fails: {verdict.detail}" if verdict.grader_failure else None
    if task == "code":
        try:
            parse_test_cases(gold)
        except MalformedTests as error:
            return f"unusable tests: {error}"
        return None
    reason = check_gold(gold) if task == "math" else None
    if reason is not None:
        return f"gold answer {gold[:60]!r} cannot be graded: {reason}"
    answer = gold
    if task == "reasoning_gym":
        try:
            answer = read_problem(gold)["answer"]
        except ValueError as error:
            return str(error)
    response = f"#### {gold}" if task == "choice" else f"\\boxed{{{answer}}}"
    verdict = await get_verdict(Judge(data_source, response, gold, extra_info))
    if task == "reasoning_gym" and not verdict.grader_failure:
        nonsense = await get_verdict(Judge(data_source, r"\boxed{?!}", gold, extra_info))
        if nonsense.correct:
            return f"the scorer takes any answer for right: {nonsense.detail}"
        # Some tasks have many right answers and name none.
        verdict = correct(None, 0.0) if answer is None else verdict
    if verdict.correct:
        return None
    return f"gold answer {gold[:60]!r} is graded {verdict.outcome} against itself: {verdict.detail}"


@lru_cache(maxsize=65_536)
def check_gold(answer: str) -> str | None:
    """Return why the math verifier cannot judge by a gold answer; None if it can.

    Either its box is read as another answer, or it has mathematics that the grammar does not read,
    so that only the same text would be correct, or values that take too long.
    """
    if _PLAIN_NUMBER.fullmatch(answer):
        return None
    boxed = extract(f"\\boxed{{{answer}}}")
    if boxed.answer != answer.strip():
        return f"in a box it is read as {(boxed.answer or 'nothing')[:60]!r}"
    node = read(answer)
    if (text := find_unread(node)) is not None:
        return f"it is not understood, so that only the same text is correct: {text[:60]!r}"
    if isinstance(node, Leaf) and (node.number or node.tree is None):
        return None
    verdict = MathVerifier(time_limit=_SECONDS).verify_answer(_NO_ANSWER, answer)
    return verdict.detail if verdict.grader_failure else None
