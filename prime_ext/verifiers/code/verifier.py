# SPDX-License-Identifier: Apache-2.0
"""The verdict on a program: run its tests, compare, and say which failed first.

Inputs and outputs: every test in a process of its own. Tests that are code: docs/reference/verifier_rules.md.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Literal, Protocol

from prime_ext.verifiers.code.extraction import as_methods, extract_program
from prime_ext.verifiers.code.judge import outputs_agree, values_agree
from prime_ext.verifiers.code.problems import (
    AssertionProblem,
    MalformedTests,
    PairProblem,
    TestCases,
    parse_test_cases,
)
from prime_ext.verifiers.sandbox import Ending, Execution, Limits, Roles, Sandbox
from prime_ext.verifiers.sandbox.plain_data import loads
from prime_ext.verifiers.verdict import Outcome, Verdict, correct, grader_failed, no_answer

RewardName = Literal["all", "fraction"]

_DETAIL = 300
# Time beyond the tests' own for starting the two processes of a suite.
_START_SECONDS = 2.0
# What the ending of a process, or the report on a test that is code, makes of a test, in the terms of verdicts and in
# words.
_ENDINGS = {
    Ending.TIMEOUT: (Outcome.TIMEOUT, "time limit"),
    Ending.OUT_OF_MEMORY: (Outcome.OUT_OF_MEMORY, "memory limit"),
    Ending.OUTPUT_LIMIT: (Outcome.ERROR, "output limit"),
    Ending.MISBEHAVED: (Outcome.ERROR, "too many threads or files"),
    Ending.FAILED: (Outcome.ERROR, ""),
}
_REPORTS = {
    "timeout": _ENDINGS[Ending.TIMEOUT],
    "out_of_memory": _ENDINGS[Ending.OUT_OF_MEMORY],
    "failed": (Outcome.WRONG, "wrong result"),
    "stopped": (Outcome.ERROR, "the program ended early"),
    "no_report": (Outcome.ERROR, "the program ended early"),
}
_USED_UP = (Outcome.TIMEOUT, "the problem's time is used up")

# What became of tests, in order: None if it passed, else the outcome and a few words.
Failed = tuple[Outcome, str]
Results = list[Failed | None]
# What is asked of the sandbox. One body serves threads, asyncio and batches.
Run = tuple[Roles, bytes, Limits]


class Backend(Protocol):
    """Where programs run: :class:`Sandbox` or :class:`~prime_ext.verifiers.sandbox.fusion.FusionSandbox`."""

    def start(self, roles: Roles, stdin: bytes = b"", limits: Limits | None = None) -> "Future[Execution]": ...


class GraderFailure(Exception):
    """The sandbox or the tests failed, so that nothing can be said about the program."""


class NotPlain(Exception):
    """The tests pass what cannot cross between processes; nothing has been decided."""


class CodeVerifier:
    """Verifies programs against test cases.

    Args:
        sandbox: where programs run; None: a :class:`Sandbox` of its own with these limits.
        limits: limits of each test, the time limit counted in execution only.
        seconds_per_problem: most seconds of execution over all tests of one problem. What it cuts off has failed with
            ``timeout``.

    Raises:
        SandboxUnavailable: this machine cannot confine programs.

    Thread-safe.
    """

    def __init__(
        self,
        sandbox: Backend | None = None,
        *,
        limits: Limits | None = None,
        seconds_per_problem: float = 60.0,
    ) -> None:
        if not seconds_per_problem > 0:
            raise ValueError(f"seconds_per_problem={seconds_per_problem!r} must be a number > 0")
        self.limits = limits or Limits()
        self.sandbox: Backend = sandbox if sandbox is not None else Sandbox(self.limits)
        self.seconds_per_problem = seconds_per_problem

    def with_limits(self, seconds: float | None = None, seconds_per_problem: float | None = None) -> "CodeVerifier":
        """This verifier, in the same sandbox, with other limits of time; None leaves one as it is.

        Raises:
            ValueError: a limit is not positive.
        """
        return CodeVerifier(
            self.sandbox,
            limits=self.limits if seconds is None else replace(self.limits, seconds=seconds),
            seconds_per_problem=self.seconds_per_problem if seconds_per_problem is None else seconds_per_problem,
        )

    def verify(self, response: str, test_cases: TestCases, *, reward: RewardName = "all") -> Verdict:
        """Return the verdict on the program in a response.

        ``reward="all"``: 1.0 if every test passes, else 0.0, decided at the first failure. ``reward="fraction"``:
        passed tests over all tests, each run on its own.

        Raises:
            ValueError: unknown reward name. Malformed tests are no exception but a failed grader.
        """
        return self.submit(response, test_cases, reward=reward).result()

    async def averify(
        self,
        response: str,
        test_cases: TestCases,
        *,
        reward: RewardName = "all",
        seconds: float | None = None,
        seconds_per_problem: float | None = None,
    ) -> Verdict:
        """As :meth:`verify`, without blocking the event loop, and with the limits of :meth:`with_limits`."""
        verifier = self.with_limits(seconds, seconds_per_problem)
        return await asyncio.wrap_future(verifier.submit(response, test_cases, reward=reward))

    def verify_program(self, program: str, test_cases: TestCases, *, reward: RewardName = "all") -> Verdict:
        """Return the verdict on a program that is already without its response."""
        return self.submit_program(program, test_cases, reward=reward).result()

    async def averify_program(self, program: str, test_cases: TestCases, *, reward: RewardName = "all") -> Verdict:
        """As :meth:`verify_program`, without blocking the event loop."""
        return await asyncio.wrap_future(self.submit_program(program, test_cases, reward=reward))

    def submit(self, response: str, test_cases: TestCases, *, reward: RewardName = "all") -> "Future[Verdict]":
        """Start a verification and return its future."""
        return self.submit_program(extract_program(response), test_cases, reward=reward)

    def submit_program(
        self, program: str | None, test_cases: TestCases, *, reward: RewardName = "all"
    ) -> "Future[Verdict]":
        """Start the verification of a program and return its future. None: the response has none."""
        if reward not in ("all", "fraction"):
            raise ValueError(f"reward={reward!r} is not one of all, fraction")
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
        """Ask for runs until all tests are done, their time is used up, or one has failed that decides."""
        started = time.perf_counter()
        results: Results = []
        left, together = self.seconds_per_problem, False
        try:
            problem = parse_test_cases(test_cases)
            if isinstance(problem, AssertionProblem):
                program = as_methods(program, problem.entry_points)
            number = len(problem.tests)
            while len(results) < number and not (reward == "all" and any(results)):
                if left <= 0:
                    results += [_USED_UP] * (number - len(results))
                    break
                if isinstance(problem, AssertionProblem):
                    run = self._suite(program, problem, len(results), left, together, reward == "all")
                else:
                    limits = replace(self.limits, seconds=min(self.limits.seconds, left))
                    run = _pair(program, problem, len(results), limits)
                execution = yield run
                left -= execution.seconds
                if execution.sandbox_failure:
                    raise GraderFailure(f"sandbox: {execution.stderr[-_DETAIL:]}")
                if not isinstance(problem, AssertionProblem):
                    results.append(_judge(execution, problem, len(results)))
                    continue
                try:
                    reported = _read_together(execution, run) if together else _read_separate(execution, run)
                except NotPlain:
                    together = True
                    continue
                if not reported:
                    raise GraderFailure("the tests reported nothing")
                results = (results + reported)[:number]
        except (MalformedTests, GraderFailure) as error:
            reason = f"tests: {error}" if isinstance(error, MalformedTests) else str(error)
            return grader_failed(Outcome.ERROR, program, time.perf_counter() - started, reason[:_DETAIL])
        seconds, note = time.perf_counter() - started, " (in one process)" if together else ""
        failed = [index for index, result in enumerate(results) if result is not None]
        parts = problem.scores(failed) if isinstance(problem, AssertionProblem) else {}
        if not failed:
            return replace(correct(program, seconds, f"{number} of {number} tests passed{note}"), parts=parts)
        outcome, words = next(filter(None, results))
        detail = f"test {failed[0] + 1} of {number}: {words}{note}"[:_DETAIL]
        score = 0.0 if reward == "all" else (number - len(failed)) / number
        return Verdict(outcome, score, program, seconds, detail, parts=parts)

    def _suite(
        self, program: str, problem: AssertionProblem, position: int, left: float, together: bool, stop_at_first: bool
    ) -> Run:
        """All tests in one go; those behind a test that ended the go alone, if every test counts."""
        codes = list(problem.tests) if position == 0 else [problem.alone(position)]
        solution = {"program": program, "context": problem.context}
        tests: dict[str, Any] = {"setup": problem.setup, "tests": codes, "stop_at_first": stop_at_first}
        if together:
            # The tests have the time of one test together.
            return {"together": solution | tests | {"nonce": secrets.token_hex(16)}}, b"", self.limits
        tests |= {"entry_points": list(problem.entry_points), "seconds": self.limits.seconds}
        seconds = min(left, self.limits.seconds * (len(codes) + 1)) + _START_SECONDS
        return {"solution": solution, "tests": tests}, b"", replace(self.limits, seconds=seconds)


def _pair(program: str, problem: PairProblem, index: int, limits: Limits) -> Run:
    given, _ = problem.tests[index]
    if problem.function is None:
        return {"program": {"program": program}}, given.encode("utf-8", "surrogatepass"), limits
    payload = {"program": program, "function": problem.function, "arguments": list(given)}
    return {"call": payload}, b"", limits


def _judge(execution: Execution, problem: PairProblem, index: int) -> Failed | None:
    _, expected = problem.tests[index]
    if not execution.finished:
        outcome, words = _ENDINGS[execution.ending]
        return outcome, words or _last_line(execution)[:200]
    if problem.function is None:
        return None if outputs_agree(execution.stdout, expected) else (Outcome.WRONG, "wrong output")
    try:
        value = loads(execution.result)["value"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return Outcome.ERROR, "the call did not return"
    return None if any(values_agree(value, result) for result in expected) else (Outcome.WRONG, "wrong result")


def _read_separate(execution: Execution, run: Run) -> Results:
    """The tests that ran, in order; all tests if the solution could not be loaded."""
    results: Results = []
    # No line of the solution runs in the process that wrote this.
    for line in map(json.loads, execution.result.split(b"\n")[:-1]):
        if "broken" in line:
            raise GraderFailure(f"the tests themselves fail: {line['broken']}")
        if "not_plain" in line:
            raise NotPlain
        if "not_loaded" in line:
            outcome, text = line["not_loaded"]
            return [_reported(outcome, f"on loading: {text}")] * len(run[0]["tests"]["tests"])
        if "end" in line:
            return results
        results.append(_reported(*line["result"]))
    if execution.ending in (Ending.TIMEOUT, Ending.OUT_OF_MEMORY):
        return [*results, _ENDINGS[execution.ending]]
    raise GraderFailure(f"the tests' process ended with {execution.exit_code}: {execution.stderr[-_DETAIL:]}")


def _read_together(execution: Execution, run: Run) -> Results:
    if execution.ending in (Ending.TIMEOUT, Ending.OUT_OF_MEMORY):
        return [_ENDINGS[execution.ending]]
    try:
        report = loads(execution.result)
        if report["nonce"] == run[0]["together"]["nonce"] and execution.finished:
            return [_reported(str(outcome), str(text)[:_DETAIL]) for outcome, text in report["results"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        pass  # the program left early, or wrote something of its own
    return [_reported("no_report", _last_line(execution)[:_DETAIL])]


def _last_line(execution: Execution) -> str:
    """Return the last line that the program wrote to standard error: usually the exception."""
    return execution.stderr.strip().rpartition("\n")[2] or f"exit code {execution.exit_code}"


def _reported(report: str, text: str) -> Failed | None:
    if report == "passed":
        return None
    outcome, words = _REPORTS.get(report, (Outcome.ERROR, ""))
    return outcome, ": ".join(filter(None, (words, text)))[:200]
