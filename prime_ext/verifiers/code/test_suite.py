# SPDX-License-Identifier: Apache-2.0
"""Running tests that are code: two processes, and one only where the tests leave no choice.

The solution's process serves calls and never sees the tests; the tests' process calls it through a proxy, gets plain
data back and reports to the parent. Leaving early, patching built-ins or the comparison, walking frames, threads and
exit functions in the solution's process change nothing in the other one.

**The fall-back.** Tests that pass something which cannot cross (a function, an object of their own class) run beside
the solution in one process. That the tests do so is found by the tests' process, while it encodes an argument; a
solution cannot bring it about. In one process a nonce stops a solution that merely leaves early, but one that walks the
frames can forge it. Verdicts say "in one process" then.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import replace

from prime_ext.verifiers.code.assertions import AssertionProblem
from prime_ext.verifiers.sandbox import Ending, Execution, Limits, SuiteRequest
from prime_ext.verifiers.sandbox.plain_data import loads

# Time beyond the tests' own for starting two processes.
_START_SECONDS = 2.0
_ENDINGS = {Ending.TIMEOUT: "timeout", Ending.OUT_OF_MEMORY: "out_of_memory"}


# The outcome of a test, and a text: ``passed``, ``failed``, ``raised``, ``timeout``, ``stopped``, ``out_of_memory`` or
# ``no_report``.
Outcomes = list[tuple[str, str]]


class GraderFailure(Exception):
    """The sandbox or the tests failed, so that nothing can be said about the program."""


class NotPlain(Exception):
    """The tests pass what cannot cross between processes; nothing has been decided."""


def request(
    program: str,
    problem: AssertionProblem,
    codes: Sequence[str],
    limits: Limits,
    budget: float,
    stop_at_first: bool = True,
) -> SuiteRequest:
    """Return the request that runs these tests in two processes.

    ``limits.seconds`` is the time for one test, ``budget`` the seconds for all of them.
    """
    seconds = min(budget, limits.seconds * (len(codes) + 1)) + _START_SECONDS
    return SuiteRequest(
        program=program,
        setup=problem.setup,
        tests=tuple(codes),
        entry_points=problem.entry_points,
        context=problem.context,
        seconds_per_test=limits.seconds,
        stop_at_first=stop_at_first,
        limits=replace(limits, seconds=seconds),
    )


def in_one_process(separate: SuiteRequest, limits: Limits) -> SuiteRequest:
    """Return the fall-back of a request. Its tests have the time of one test together."""
    return replace(separate, separate=False, nonce=secrets.token_hex(16), limits=limits)


def read_report(execution: Execution, sent: SuiteRequest) -> Outcomes:
    """Return the outcomes of the tests that ran, in order; of all tests if the solution could not be loaded."""
    if execution.sandbox_failure:
        raise GraderFailure(f"sandbox: {execution.stderr[-300:]}")
    return _read_separate(execution, sent) if sent.separate else _read_together(execution, sent)


def _read_separate(execution: Execution, sent: SuiteRequest) -> Outcomes:
    outcomes: Outcomes = []
    # No line of the solution runs in the process that wrote this.
    for line in map(json.loads, execution.result.split(b"\n")[:-1]):
        if "broken" in line:
            raise GraderFailure(f"the tests themselves fail: {line['broken']}")
        if "not_plain" in line:
            raise NotPlain(line["not_plain"])
        if "not_loaded" in line:
            outcome, text = line["not_loaded"]
            return [(outcome, f"on loading: {text}")] * len(sent.tests)
        if "end" in line:
            return outcomes
        outcomes.append((line["result"][0], line["result"][1]))
    if execution.ending in _ENDINGS:
        return [*outcomes, (_ENDINGS[execution.ending], "")]
    raise GraderFailure(f"the tests' process ended with {execution.exit_code}: {execution.stderr[-300:]}")


def _read_together(execution: Execution, sent: SuiteRequest) -> Outcomes:
    if execution.ending in _ENDINGS:
        return [(_ENDINGS[execution.ending], "")]
    try:
        report = loads(execution.result)
        if report["nonce"] == sent.nonce and execution.finished:
            return [(str(outcome), str(text)[:300]) for outcome, text in report["results"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        pass  # the program left early, or wrote something of its own
    text = execution.stderr.strip().rpartition("\n")[2][:300]
    return [("no_report", text or f"exit code {execution.exit_code}")]
