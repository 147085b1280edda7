# SPDX-License-Identifier: Apache-2.0
"""Verdicts on programs: run the tests, compare, and report the first failure.

Each test of inputs and outputs runs in a process of its own, which never gets the expected output. Tests that are code
run in the solution's process; docs/reference/verifiers.md lists what a program can forge there.
"""

import asyncio
import json
import secrets
import signal
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Literal

from prime_ext.verifiers.code.extraction import as_methods, extract_program
from prime_ext.verifiers.code.judge import outputs_agree, values_agree
from prime_ext.verifiers.code.problems import AssertionProblem, MalformedTests, PairProblem, TestCases, parse_test_cases
from prime_ext.verifiers.sandbox.client import Ending, Execution, Limits, Sandbox
from prime_ext.verifiers.verdict import Outcome, Verdict, correct, grader_failed, no_answer

RewardName = Literal["all", "fraction"]

_DETAIL = 300
# Outcome and text by the ending of a process, and by the report on a test that is code.
_ENDINGS = {
    Ending.TIMEOUT: (Outcome.TIMEOUT, "time limit"),
    Ending.OUT_OF_MEMORY: (Outcome.OUT_OF_MEMORY, "memory limit"),
    Ending.OUTPUT_LIMIT: (Outcome.ERROR, "output limit"),
    Ending.MISBEHAVED: (Outcome.ERROR, "too many threads or files"),
    Ending.FAILED: (Outcome.ERROR, ""),
}
_REPORTS = {"out_of_memory": _ENDINGS[Ending.OUT_OF_MEMORY], "failed": (Outcome.WRONG, "wrong result")}
_USED_UP = (Outcome.TIMEOUT, "the problem's time is used up")

# Results of tests, in order: None for a pass, else the outcome and a text.
Failed = tuple[Outcome, str]
Results = list[Failed | None]
# The arguments of Sandbox.start.
Run = tuple[str, dict[str, Any], bytes, Limits]
Runs = Generator[Run, Execution, Results]


class GraderFailure(Exception):
    """The sandbox or the tests failed, so that nothing is known about the program."""


class CodeVerifier:
    """Verifies programs against test cases. Thread-safe.

    Args:
        sandbox: runs the programs; None: a new one with these limits (``SandboxUnavailable``).
        limits: limits of each test.
        seconds_per_problem: most seconds of execution of all tests of a problem; those cut off fail with ``timeout``.
    """

    def __init__(
        self, sandbox: Sandbox | None = None, *, limits: Limits | None = None, seconds_per_problem: float = 60.0
    ) -> None:
        if not seconds_per_problem > 0:
            raise ValueError(f"seconds_per_problem={seconds_per_problem!r} must be a number > 0")
        self.limits = limits or Limits()
        self.sandbox = sandbox if sandbox is not None else Sandbox(self.limits)
        self.seconds_per_problem = seconds_per_problem

    def verify(self, response: str, test_cases: TestCases, *, reward: RewardName = "all") -> Verdict:
        """Return the verdict on the program in a response; malformed tests are a failure of the grader.

        ``reward="all"``: 1.0 if every test passes, else 0.0, decided at the first failure. ``reward="fraction"``:
        passed tests over all tests.
        """
        return self.submit_program(extract_program(response), test_cases, reward=reward).result()

    async def averify(
        self,
        response: str,
        test_cases: TestCases,
        *,
        reward: RewardName = "all",
        seconds: float | None = None,
        seconds_per_problem: float | None = None,
    ) -> Verdict:
        """As :meth:`verify`, without blocking the event loop. Limits that are not None replace the verifier's."""
        limits = self.limits if seconds is None else replace(self.limits, seconds=seconds)
        per_problem = self.seconds_per_problem if seconds_per_problem is None else seconds_per_problem
        verifier = CodeVerifier(self.sandbox, limits=limits, seconds_per_problem=per_problem)
        return await asyncio.wrap_future(verifier.submit_program(extract_program(response), test_cases, reward=reward))

    def submit_program(
        self, program: str | None, test_cases: TestCases, *, reward: RewardName = "all"
    ) -> "Future[Verdict]":
        """Start the verification of a program, None if the response has none, and return its future."""
        future: Future[Verdict] = Future()
        future.set_running_or_notify_cancel()
        if program is None:
            future.set_result(no_answer(0.0, "no complete Python fence"))
            return future
        steps = self._verdict(program, test_cases, reward)

        def advance(send: Callable[[], Run]) -> None:
            try:
                waiting = self.sandbox.start(*send())
            except StopIteration as stop:
                future.set_result(stop.value)
            except BaseException as error:
                future.set_exception(error)
            else:
                waiting.add_done_callback(lambda done: advance(lambda: steps.send(done.result())))

        advance(lambda: next(steps))
        return future

    def _verdict(self, program: str, test_cases: TestCases, reward: RewardName) -> Generator[Run, Execution, Verdict]:
        started = time.perf_counter()
        try:
            problem = parse_test_cases(test_cases)
            if isinstance(problem, AssertionProblem):
                program = as_methods(program, problem.entry_points)
                results = yield from self._run_assertions(program, problem, reward == "all")
            else:
                results = yield from self._run_pairs(program, problem, reward == "all")
        except (MalformedTests, GraderFailure) as error:
            return grader_failed(Outcome.ERROR, program, time.perf_counter() - started, str(error)[:_DETAIL])
        seconds = time.perf_counter() - started
        number = len(problem.tests)
        failed = [index for index, result in enumerate(results) if result is not None]
        if not failed:
            return correct(program, seconds, f"{number} of {number} tests passed")
        outcome, words = next(filter(None, results))
        score = 0.0 if reward == "all" else (number - len(failed)) / number
        return Verdict(outcome, score, program, seconds, f"test {failed[0] + 1} of {number}: {words}"[:_DETAIL])

    def _run_pairs(self, program: str, problem: PairProblem, stop_at_first: bool) -> Runs:
        results: Results = []
        left = self.seconds_per_problem
        for given, expected in problem.tests:
            if left <= 0:
                return results + [_USED_UP] * (len(problem.tests) - len(results))
            limits = replace(self.limits, seconds=min(self.limits.seconds, left))
            if problem.function is None and len(expected) > limits.output_bytes // 2:
                limits = replace(limits, output_bytes=2 * len(expected.encode("utf-8", "surrogatepass")))
            if problem.function is None:
                execution = yield "program", {"program": program}, given.encode("utf-8", "surrogatepass"), limits
            else:
                payload = {"program": program, "function": problem.function, "arguments": list(given)}
                execution = yield "call", payload, b"", limits
            _require_sandbox(execution)
            left -= execution.seconds
            results.append(_judge(execution, problem.function, expected))
            if stop_at_first and results[-1] is not None:
                break
        return results

    def _run_assertions(self, program: str, problem: AssertionProblem, stop_at_first: bool) -> Runs:
        """Run all tests in one process; without a report of it none has passed."""
        nonce = secrets.token_hex(16)
        number = len(problem.tests)
        payload = {
            "program": program,
            "context": problem.context,
            "setup": problem.setup,
            "tests": list(problem.tests),
            "entry_points": list(problem.entry_points),
            "seconds": self.limits.seconds,
            "stop_at_first": stop_at_first,
            "nonce": nonce,
        }
        # Loading counts as one more test.
        seconds = min(self.seconds_per_problem, self.limits.seconds * (number + 1))
        execution = yield "tests", payload, b"", replace(self.limits, seconds=seconds)
        _require_sandbox(execution)
        results = _read_report(execution, nonce, number)
        if results is not None:
            return results
        outcome, words = Outcome.ERROR, f"the program ended early: {_last_line(execution)}"[:200]
        if execution.ending in (Ending.TIMEOUT, Ending.OUT_OF_MEMORY):
            outcome, words = _ENDINGS[execution.ending]
        elif execution.exit_code == -signal.SIGALRM:
            outcome, words = _ENDINGS[Ending.TIMEOUT]
        return [(outcome, words + ("" if number == 1 else " (in this test or a later one)"))] * number


def _require_sandbox(execution: Execution) -> None:
    if execution.ending is Ending.SANDBOX_FAILURE:
        raise GraderFailure(f"sandbox: {execution.stderr[-_DETAIL:]}")


def _judge(execution: Execution, function: str | None, expected: Any) -> Failed | None:
    if execution.ending is not Ending.FINISHED:
        outcome, words = _ENDINGS[execution.ending]
        return outcome, words or _last_line(execution)[:200]
    if function is None:
        return None if outputs_agree(execution.stdout, expected) else (Outcome.WRONG, "wrong output")
    try:
        value = json.loads(execution.result)["value"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return Outcome.ERROR, "the call did not return"
    return None if any(values_agree(value, result) for result in expected) else (Outcome.WRONG, "wrong result")


def _read_report(execution: Execution, nonce: str, number: int) -> Results | None:
    """Return the results in the report of the tests, None if the program left early or wrote it itself."""
    if execution.ending is not Ending.FINISHED:
        return None
    try:
        report = json.loads(execution.result)
        if report["nonce"] != nonce:
            return None
        if "broken" in report:
            raise GraderFailure(f"the tests themselves fail: {report['broken']}"[:_DETAIL])
        results = [_result(str(outcome), str(text)) for outcome, text in report["results"]]
        # A report ends with the last of the tests or with a failure.
        return results if len(results) == number or any(results) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _last_line(execution: Execution) -> str:
    return execution.stderr.strip().rpartition("\n")[2] or f"exit code {execution.exit_code}"


def _result(report: str, text: str) -> Failed | None:
    if report == "passed":
        return None
    outcome, words = _REPORTS.get(report, (Outcome.ERROR, ""))
    return outcome, ": ".join(filter(None, (words, text)))[:200]
