# SPDX-License-Identifier: Apache-2.0
"""The verdict on a program: run its tests, compare, and say which failed first."""

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from prime_ext.verifiers.code import test_suite
from prime_ext.verifiers.code.extraction import as_methods, extract_program
from prime_ext.verifiers.code.judge import outputs_agree, values_agree
from prime_ext.verifiers.code.problems import (
    AssertionProblem,
    CallProblem,
    MalformedTests,
    StdinProblem,
    TestCases,
    parse_test_cases,
)
from prime_ext.verifiers.code.test_suite import GraderFailure
from prime_ext.verifiers.sandbox import CallRequest, Ending, Execution, Limits, ProgramRequest, Sandbox
from prime_ext.verifiers.sandbox.plain_data import loads
from prime_ext.verifiers.sandbox.requests import Request
from prime_ext.verifiers.verdict import Outcome, Verdict, correct, grader_failed, no_answer

RewardName = Literal["all", "fraction"]

_DETAIL = 300
# What an ending, or the report of a suite, makes of a test, in the terms of verdicts and in words.
_ENDINGS = {
    Ending.TIMEOUT: (Outcome.TIMEOUT, "time limit"),
    Ending.OUT_OF_MEMORY: (Outcome.OUT_OF_MEMORY, "memory limit"),
    Ending.OUTPUT_LIMIT: (Outcome.ERROR, "output limit"),
    Ending.MISBEHAVED: (Outcome.ERROR, "too many threads or files"),
    Ending.FAILED: (Outcome.ERROR, ""),
}
_REPORTS = {
    "failed": (Outcome.WRONG, "wrong result"),
    "timeout": (Outcome.TIMEOUT, "time limit"),
    "out_of_memory": (Outcome.OUT_OF_MEMORY, "memory limit"),
    "stopped": (Outcome.ERROR, "the program ended early"),
    "no_report": (Outcome.ERROR, "the program ended early"),
}


class Backend(Protocol):
    """Where programs run: :class:`Sandbox` or :class:`~prime_ext.verifiers.sandbox.fusion.FusionSandbox`."""

    def submit(self, request: Request) -> "Future[Execution]": ...


@dataclass(frozen=True)
class FailedTest:
    """What went wrong with one test: the outcome and a few words."""

    outcome: Outcome
    words: str


# The tests that failed, by their places.
Failures = list[tuple[int, FailedTest]]
# Asks for executions, is sent them, returns the verdict's parts. One body serves threads, asyncio and batches.
Steps = Generator[Request, Execution, Verdict]


class CodeVerifier:
    """Verifies programs against test cases.

    Args:
        sandbox: where programs run; None: a :class:`Sandbox` of its own with these limits.
        limits: limits of each test, the time limit counted in execution only.
        seconds_per_problem: most seconds of execution over all tests of one problem. What it cuts off has failed with
            ``timeout``.

    Raises:
        SandboxUnavailable: this machine cannot confine programs.

    Thread-safe; may be pickled if its sandbox may.
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
        if seconds is None and seconds_per_problem is None:
            return self
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

    def submit_program(self, program: str, test_cases: TestCases, *, reward: RewardName = "all") -> "Future[Verdict]":
        """Start the verification of a program and return its future."""
        _check_reward(reward)
        return self._drive(self._verdict(program, test_cases, reward))

    def submit(self, response: str, test_cases: TestCases, *, reward: RewardName = "all") -> "Future[Verdict]":
        """Start a verification and return its future."""
        _check_reward(reward)
        program = extract_program(response)
        if program is not None:
            return self.submit_program(program, test_cases, reward=reward)
        done: Future[Verdict] = Future()
        done.set_result(no_answer(0.0, "no complete Python fence"))
        return done

    def _drive(self, steps: Steps) -> "Future[Verdict]":
        future: Future[Verdict] = Future()
        future.set_running_or_notify_cancel()

        def advance(send: Callable[[], Request]) -> None:
            try:
                waiting = self.sandbox.submit(send())
            except StopIteration as stop:
                future.set_result(stop.value)
            except BaseException as error:
                future.set_exception(error)
            else:
                waiting.add_done_callback(lambda done: advance(lambda: steps.send(done.result())))

        advance(lambda: next(steps))
        return future

    def _verdict(self, program: str, test_cases: TestCases, reward: RewardName) -> Steps:
        started = time.perf_counter()
        note = ""
        parts: dict[str, float] = {}
        try:
            problem = parse_test_cases(test_cases)
            if isinstance(problem, AssertionProblem):
                program = as_methods(program, problem.entry_points)
                failures, note = yield from self._run_assertions(program, problem, reward)
                parts = problem.scores([index for index, _ in failures])
            else:
                failures = yield from self._run_pairs(program, problem, reward)
        except (MalformedTests, GraderFailure) as error:
            reason = f"tests: {error}" if isinstance(error, MalformedTests) else str(error)
            return grader_failed(Outcome.ERROR, program, time.perf_counter() - started, reason[:_DETAIL])
        number, seconds = len(problem.tests), time.perf_counter() - started
        if not failures:
            return replace(correct(program, seconds, f"{number} of {number} tests passed{note}"), parts=parts)
        index, first = failures[0]
        detail = f"test {index + 1} of {number}: {first.words}{note}"[:_DETAIL]
        score = 0.0 if reward == "all" else (number - len(failures)) / number
        return Verdict(first.outcome, score, program, seconds, detail, parts=parts)

    def _run_pairs(
        self, program: str, problem: StdinProblem | CallProblem, reward: RewardName
    ) -> Generator[Request, Execution, Failures]:
        """Run every test in a fork of its own, one after the other; return the failures."""
        failures: Failures = []
        left = self.seconds_per_problem
        for index in range(len(problem.tests)):
            if left <= 0:
                failure: FailedTest | None = FailedTest(Outcome.TIMEOUT, "the problem's time is used up")
            else:
                limits = replace(self.limits, seconds=min(self.limits.seconds, left))
                execution = yield _request(program, problem, index, limits)
                left -= execution.seconds
                failure = self._judge(execution, problem, index)
            if failure is not None:
                failures.append((index, failure))
                if reward == "all":
                    break
        return failures

    def _judge(self, execution: Execution, problem: StdinProblem | CallProblem, index: int) -> FailedTest | None:
        if execution.sandbox_failure:
            raise GraderFailure(f"sandbox: {execution.stderr[-_DETAIL:]}")
        if not execution.finished:
            outcome, words = _ENDINGS[execution.ending]
            return FailedTest(outcome, words or _last_line(execution))
        if isinstance(problem, StdinProblem):
            right = outputs_agree(execution.stdout, problem.tests[index].expected)
            return None if right else FailedTest(Outcome.WRONG, "wrong output")
        try:
            value = loads(execution.result)["value"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return FailedTest(Outcome.ERROR, "the call did not return")
        if any(values_agree(value, expected) for expected in problem.tests[index].expected):
            return None
        return FailedTest(Outcome.WRONG, "wrong result")

    def _run_assertions(
        self, program: str, problem: AssertionProblem, reward: RewardName
    ) -> Generator[Request, Execution, tuple[Failures, str]]:
        """Run the tests in one go; those behind a test that ended the go run alone, if every test counts."""
        number = len(problem.tests)
        failures: Failures = []
        left, together, position = self.seconds_per_problem, False, 0
        while position < number:
            if left <= 0:
                failures += [
                    (i, FailedTest(Outcome.TIMEOUT, "the problem's time is used up")) for i in range(position, number)
                ]
                break
            codes = problem.tests if position == 0 else [problem.alone(position)]
            sent = test_suite.request(program, problem, codes, self.limits, left, stop_at_first=reward == "all")
            if together:
                sent = test_suite.in_one_process(sent, self.limits)
            execution = yield sent
            left -= execution.seconds
            try:
                outcomes = test_suite.read_report(execution, sent)
            except test_suite.NotPlain:
                together = True
                continue
            for index, (outcome, text) in enumerate(outcomes):
                if outcome != "passed":
                    failures.append((position + index, _failed(outcome, text)))
            if reward == "all" and failures:
                break
            if not outcomes:
                raise GraderFailure("the tests reported nothing")
            position += len(outcomes)
        return failures, " (in one process)" if together else ""


def _check_reward(reward: str) -> None:
    if reward not in ("all", "fraction"):
        raise ValueError(f"reward={reward!r} is not one of all, fraction")


def _request(program: str, problem: StdinProblem | CallProblem, index: int, limits: Limits) -> Request:
    if isinstance(problem, StdinProblem):
        return ProgramRequest(program, problem.tests[index].stdin, limits)
    return CallRequest(program, problem.function, problem.tests[index].arguments, limits)


def _last_line(execution: Execution) -> str:
    """Return the last line that the program wrote to standard error: usually the exception."""
    line = execution.stderr.strip().rpartition("\n")[2][:200]
    return line or f"exit code {execution.exit_code}"


def _failed(report: str, text: str) -> FailedTest:
    outcome, words = _REPORTS.get(report, (Outcome.ERROR, ""))
    return FailedTest(outcome, ": ".join(filter(None, (words, text)))[:200])
