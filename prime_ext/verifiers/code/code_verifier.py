# SPDX-License-Identifier: Apache-2.0
"""Verdicts on programs: run the tests, compare, and report the first failure.

Each test of inputs and outputs runs in a process of its own, which never gets the expected output.
Tests that are code run in the solution's process; docs/reference/verifiers.md lists what a program
can forge there.
"""

import asyncio
import json
import secrets
import time
from dataclasses import replace
from typing import Any, Literal

from prime_ext.verifiers.code.cases import (
    AssertionProblem,
    MalformedTests,
    PairProblem,
    TestCases,
    parse_test_cases,
)
from prime_ext.verifiers.code.judge import outputs_agree, values_agree
from prime_ext.verifiers.code.program_extraction import extract_program, wrap_in_class
from prime_ext.verifiers.sandbox.client import Ending, Execution, Limits, Sandbox
from prime_ext.verifiers.verdict import Outcome, Verdict, correct, grader_failed, no_answer

RewardName = Literal["all", "fraction"]

_DETAIL = 300
# Outcome and text by the ending of a process, and by the report on tests that are code.
_ENDINGS = {
    Ending.TIMEOUT: (Outcome.TIMEOUT, "time limit"),
    Ending.OUT_OF_MEMORY: (Outcome.OUT_OF_MEMORY, "memory limit"),
    Ending.OUTPUT_LIMIT: (Outcome.ERROR, "output limit"),
    Ending.MISBEHAVED: (Outcome.ERROR, "too many threads or files"),
    Ending.FAILED: (Outcome.ERROR, ""),
}
_REPORTS = {
    "out_of_memory": _ENDINGS[Ending.OUT_OF_MEMORY],
    "failed": (Outcome.WRONG, "wrong result"),
}
_USED_UP = (Outcome.TIMEOUT, "the problem's time is used up")
_NO_REPORT = (Outcome.ERROR, "the program ended early")

# Results of tests, in order: None for a pass, else the outcome and a text.
Failed = tuple[Outcome, str]
Results = list[Failed | None]


class GraderFailure(Exception):
    """The sandbox or the tests failed, so that nothing is known about the program."""


class CodeVerifier:
    """Verifier of programs against test cases.

    Args:
        sandbox: runs the programs; None: a new one with these limits (``SandboxUnavailable``).
        limits: limits of each test; tests that are code are one, with twice the time.
        seconds_per_problem: most seconds of execution of all tests of a problem; those cut off fail
            with ``timeout``.
    """

    def __init__(
        self,
        sandbox: Sandbox | None = None,
        *,
        limits: Limits | None = None,
        seconds_per_problem: float = 60.0,
    ) -> None:
        if not seconds_per_problem > 0:
            raise ValueError(f"seconds_per_problem={seconds_per_problem!r} must be a number > 0")
        self.limits = limits or Limits()
        self.sandbox = sandbox if sandbox is not None else Sandbox(self.limits)
        self.seconds_per_problem = seconds_per_problem

    async def averify(
        self,
        response: str,
        test_cases: TestCases,
        *,
        reward: RewardName = "all",
        seconds: float | None = None,
        seconds_per_problem: float | None = None,
    ) -> Verdict:
        """Return the verdict on the program in a response.

        Malformed tests are a failure of the grader. ``reward="all"``: 1.0 if every test passes,
        else 0.0, decided at the first failure. ``reward="fraction"``: passed tests over all tests.
        Limits that are not None replace the verifier's.
        """
        program = extract_program(response)
        if program is None:
            return no_answer(0.0, "no complete Python fence")
        limits = self.limits if seconds is None else replace(self.limits, seconds=seconds)
        per_problem = (
            self.seconds_per_problem if seconds_per_problem is None else seconds_per_problem
        )
        verifier = CodeVerifier(self.sandbox, limits=limits, seconds_per_problem=per_problem)
        return await verifier.averify_program(program, test_cases, reward)

    async def averify_program(
        self, program: str, test_cases: TestCases, reward: RewardName = "all"
    ) -> Verdict:
        """Return the verdict on a program."""
        started = time.perf_counter()
        try:
            problem = parse_test_cases(test_cases)
            if isinstance(problem, AssertionProblem):
                program = wrap_in_class(program, problem.entry_points)
                number = 1
                results = [await self._run_assertions(program, problem)]
            else:
                number = len(problem.tests)
                results = await self._run_pairs(program, problem, reward == "all")
        except (MalformedTests, GraderFailure) as error:
            return grader_failed(
                Outcome.ERROR, program, time.perf_counter() - started, str(error)[:_DETAIL]
            )
        seconds = time.perf_counter() - started
        failed = [index for index, result in enumerate(results) if result is not None]
        if not failed:
            return correct(program, seconds, f"{number} of {number} tests passed")
        outcome, words = next(filter(None, results))
        score = 0.0 if reward == "all" else (number - len(failed)) / number
        return Verdict(
            outcome, score, program, seconds, f"test {failed[0] + 1} of {number}: {words}"[:_DETAIL]
        )

    async def _run(
        self, role: str, payload: dict[str, Any], stdin: bytes, limits: Limits
    ) -> Execution:
        execution = await asyncio.wrap_future(self.sandbox.start(role, payload, stdin, limits))
        if execution.ending is Ending.SANDBOX_FAILURE:
            raise GraderFailure(f"sandbox: {execution.stderr[-_DETAIL:]}")
        return execution

    async def _run_pairs(self, program: str, problem: PairProblem, stop_at_first: bool) -> Results:
        results: Results = []
        left = self.seconds_per_problem
        for test_input, expected in problem.tests:
            if left <= 0:
                return results + [_USED_UP] * (len(problem.tests) - len(results))
            limits = replace(self.limits, seconds=min(self.limits.seconds, left))
            if problem.function is None and len(expected) > limits.output_bytes // 2:
                limits = replace(
                    limits, output_bytes=2 * len(expected.encode("utf-8", "surrogatepass"))
                )
            if problem.function is None:
                stdin = test_input.encode("utf-8", "surrogatepass")
                execution = await self._run("program", {"program": program}, stdin, limits)
            else:
                payload = {
                    "program": program,
                    "function": problem.function,
                    "arguments": list(test_input),
                }
                execution = await self._run("call", payload, b"", limits)
            left -= execution.seconds
            results.append(_judge(execution, problem.function, expected))
            if stop_at_first and results[-1] is not None:
                break
        return results

    async def _run_assertions(self, program: str, problem: AssertionProblem) -> Failed | None:
        """Run all tests in one process; without a report of it none has passed."""
        nonce = secrets.token_hex(16)
        payload = {
            "program": program,
            "context": problem.context,
            "setup": problem.setup,
            "tests": problem.tests,
            "entry_points": list(problem.entry_points),
            "nonce": nonce,
        }
        limits = replace(
            self.limits, seconds=min(2 * self.limits.seconds, self.seconds_per_problem)
        )
        execution = await self._run("tests", payload, b"", limits)
        if execution.ending is not Ending.FINISHED:
            return _fault(execution)
        try:
            report = json.loads(execution.result)
            if report["nonce"] != nonce:
                return _NO_REPORT
            if "broken" in report:
                raise GraderFailure(f"the tests themselves fail: {report['broken']}"[:_DETAIL])
            status = str(report["outcome"])
            text = str(report["text"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return _NO_REPORT
        if status == "passed":
            return None
        outcome, words = _REPORTS.get(status, (Outcome.ERROR, ""))
        return outcome, ": ".join(filter(None, (words, text)))[:200]


def _fault(execution: Execution) -> Failed:
    outcome, words = _ENDINGS[execution.ending]
    return outcome, words or (
        execution.stderr.strip().rpartition("\n")[2] or f"exit code {execution.exit_code}"
    )[:200]


def _judge(execution: Execution, function: str | None, expected: Any) -> Failed | None:
    if execution.ending is not Ending.FINISHED:
        return _fault(execution)
    if function is None:
        agrees = outputs_agree(execution.stdout, expected)
        return None if agrees else (Outcome.WRONG, "wrong output")
    try:
        value = json.loads(execution.result)["value"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return Outcome.ERROR, "the call did not return"
    agrees = any(values_agree(value, result) for result in expected)
    return None if agrees else (Outcome.WRONG, "wrong result")
