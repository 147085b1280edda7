# SPDX-License-Identifier: Apache-2.0
"""What a sandbox can be asked to run, within which limits, and what a run leaves behind."""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Ending(str, enum.Enum):
    """How a run ended. Only ``finished`` says that its output is worth a look."""

    FINISHED = "finished"  # exit code 0
    FAILED = "failed"  # uncaught exception, another exit code, a signal
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    MISBEHAVED = "misbehaved"  # too many threads or files
    SANDBOX_FAILURE = "sandbox_failure"  # not the program's fault: decides nothing about it

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Limits:
    """Limits of one run. All are enforced from outside the program or by the kernel.

    Attributes:
        seconds: wall time from the start of the run, in seconds; waiting for a free worker does not count. The same
            number plus two limits processor time over all threads.
        memory_bytes: address space, the interpreter's own 50 to 150 MB included.
        output_bytes: size of standard output, of standard error and of every file that the program writes.
        threads: most threads at a time; checked every 20 ms.
        files: most files in the working directory, checked likewise.
    """

    seconds: float = 10.0
    memory_bytes: int = 1 << 30
    output_bytes: int = 4 << 20
    threads: int = 64
    files: int = 32

    def __post_init__(self) -> None:
        if not (isinstance(self.seconds, int | float) and 0 < self.seconds < math.inf):
            raise ValueError(f"seconds={self.seconds!r} must be a number > 0")
        for name, low in (("memory_bytes", 64 << 20), ("output_bytes", 1), ("threads", 1), ("files", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ValueError(f"{name}={value!r} must be a whole number >= {low}")

    @property
    def cpu_seconds(self) -> int:
        """The limit of processor time."""
        return int(self.seconds) + 2


@dataclass(frozen=True)
class Execution:
    """What a run left behind.

    Attributes:
        ending: how it ended.
        stdout: standard output, at most ``Limits.output_bytes``. The program may have written anything here.
        stderr: the last 4 KB of standard error, or what went wrong with the sandbox.
        exit_code: exit code, or minus the signal that ended it; None if the sandbox failed.
        seconds: wall time of the run alone.
        result: what the harness reported on its own descriptor (function calls, assertions); a program can forge the
            report of the process that it runs in, and of no other.
    """

    ending: Ending
    stdout: bytes = b""
    stderr: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    result: bytes = b""

    @property
    def finished(self) -> bool:
        return self.ending is Ending.FINISHED

    @property
    def sandbox_failure(self) -> bool:
        return self.ending is Ending.SANDBOX_FAILURE


class SandboxUnavailable(RuntimeError):
    """This machine cannot confine a program well enough, or the server did not start. The message says what to do."""


def failure(reason: str, seconds: float = 0.0) -> Execution:
    """The execution of a run that the sandbox could not carry out."""
    return Execution(Ending.SANDBOX_FAILURE, stderr=reason, seconds=seconds)


@dataclass(frozen=True)
class ProgramRequest:
    """Run a script on its standard input.

    Attributes:
        program: Python source.
        stdin: the input; text is encoded as UTF-8.
        limits: limits of the run, None for the sandbox's own.
    """

    program: str
    stdin: bytes | str = b""
    limits: Limits | None = None

    def roles(self) -> dict[str, dict[str, Any]]:
        """What each process of the run does, and what it is told; the last one decides when the run is over."""
        return {"program": {"program": self.program}}


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

    def roles(self) -> dict[str, dict[str, Any]]:
        payload = {"program": self.program, "function": self.function, "arguments": list(self.arguments)}
        return {"call": payload}


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

    def roles(self) -> dict[str, dict[str, Any]]:
        solution: dict[str, Any] = {"program": self.program, "context": self.context}
        tests = {"setup": self.setup, "tests": list(self.tests), "stop_at_first": self.stop_at_first}
        if not self.separate:
            return {"together": {**solution, **tests, "nonce": self.nonce}}
        tests |= {"entry_points": list(self.entry_points), "seconds": self.seconds_per_test}
        return {"solution": solution, "tests": tests}


Request = ProgramRequest | CallRequest | SuiteRequest
