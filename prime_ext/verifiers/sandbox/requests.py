# SPDX-License-Identifier: Apache-2.0
"""What a sandbox can be asked to run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prime_ext.verifiers.sandbox.limits import Limits


@dataclass(frozen=True)
class ProgramRequest:
    """Run a script on its standard input.

    Attributes:
        program: Python source.
        stdin: the input; text is encoded as UTF-8.
        limits: limits of the run, None for the sandbox's own.
        keep_code: put the compiled program into ``Execution.result``, for the next run of the same program.
        code: compiled program from there. It may have been tampered with by the program, and is read in confinement.
    """

    program: str
    stdin: bytes | str = b""
    limits: Limits | None = None
    keep_code: bool = False
    code: bytes = b""

    def roles(self) -> list[tuple[str, dict[str, Any], bytes]]:
        stdin = self.stdin.encode("utf-8", "surrogatepass") if isinstance(self.stdin, str) else self.stdin
        payload = {"program": self.program, "keep_code": self.keep_code, "code": self.code}
        return [("program", payload, stdin)]


@dataclass(frozen=True)
class CallRequest:
    """Call a function of the program, or a method of its class ``Solution``, once.

    The program finds the usual modules (:mod:`~prime_ext.verifiers.sandbox.prelude`) without importing them.

    ``Execution.result`` is then ``{"value": ...}`` as JSON, or empty if the call did not return.
    """

    program: str
    function: str
    arguments: Sequence[Any]
    limits: Limits | None = None

    def roles(self) -> list[tuple[str, dict[str, Any], bytes]]:
        payload = {"program": self.program, "function": self.function, "arguments": list(self.arguments)}
        return [("call", payload, b"")]


@dataclass(frozen=True)
class SuiteRequest:
    """Run tests that are code against a program.

    Attributes:
        program: Python source of the solution.
        setup: trusted code that runs before the tests: imports and helpers.
        tests: trusted pieces of code, each one test.
        entry_points: names under which the tests call the solution.
        context: trusted code that the solution may build on, run before it in its own namespace.
        seconds_per_test: time that the solution has for one test, loading counted as one. ``limits.seconds`` is the
            time for all.
        stop_at_first: leave out what comes after the first failure.
        separate: two processes, the solution never seeing the tests; otherwise one process, which a hostile solution
            can deceive.
        nonce: returned in the report of the one-process form.
    """

    program: str
    setup: str
    tests: Sequence[str]
    entry_points: Sequence[str]
    context: str = ""
    seconds_per_test: float = 10.0
    stop_at_first: bool = True
    separate: bool = True
    nonce: str = ""
    limits: Limits | None = None

    def roles(self) -> list[tuple[str, dict[str, Any], bytes]]:
        solution: dict[str, Any] = {"program": self.program, "context": self.context}
        tests = {
            "setup": self.setup,
            "tests": list(self.tests),
            "entry_points": list(self.entry_points),
            "seconds": self.seconds_per_test,
            "stop_at_first": self.stop_at_first,
        }
        if self.separate:
            return [("solution", solution, b""), ("tests", tests, b"")]
        return [("together", {**solution, "tests": {**tests, "nonce": self.nonce}}, b"")]


Request = ProgramRequest | CallRequest | SuiteRequest
