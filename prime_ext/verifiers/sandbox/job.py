# SPDX-License-Identifier: Apache-2.0
"""One request on its way through the fork server: its anonymous files, and what is read from them afterwards."""

import marshal
import os
import signal
import time
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from prime_ext.verifiers.sandbox import wire
from prime_ext.verifiers.sandbox.limits import Ending, Execution, Limits
from prime_ext.verifiers.sandbox.requests import Request

_STDERR_TAIL = 4096
_ENDINGS = {"timeout": Ending.TIMEOUT, "misbehaved": Ending.MISBEHAVED}


def _file(content: bytes = b"") -> int:
    descriptor = os.memfd_create("prime_ext")
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    if content:
        os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def failure(reason: str, seconds: float = 0.0) -> Execution:
    """Return the execution of a run that the sandbox could not carry out."""
    return Execution(Ending.SANDBOX_FAILURE, stderr=reason, seconds=seconds)


class Job:
    """A request, its future, and its files while it runs."""

    def __init__(self, request: Request, limits: Limits) -> None:
        self.limits = limits
        self.future: Future[Execution] = Future()
        self.attempts = 0
        self.sent_at = 0.0
        self._descriptors: list[int] = []
        # At once, so that it is the caller who hears of a request that cannot be sent (ValueError: nested too deeply).
        # A child trusts the payload and reads it before anything of the program runs.
        self._roles = [(role, marshal.dumps(payload), stdin) for role, payload, stdin in request.roles()]

    def open(self, number: int) -> tuple[dict[str, Any], list[int]]:
        """Create the files and return the message and descriptors for the server."""
        for _, payload, stdin in self._roles:
            self._descriptors += [_file(stdin), _file(), _file(), _file(payload), _file()]
        self.attempts += 1
        self.sent_at = time.monotonic()
        roles = [role for role, _, _ in self._roles]
        return {"run": number, "roles": roles, "limits": asdict(self.limits)}, list(self._descriptors)

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def _read(self, kind: int, tail: int | None = None) -> bytes:
        # The last process's files: the tests' in a suite.
        descriptor = self._descriptors[-wire.PER_PROCESS + kind]
        size = os.fstat(descriptor).st_size
        start = 0 if tail is None else max(0, size - tail)
        return os.pread(descriptor, size - start, start)

    def _could_start(self, reply: dict[str, Any]) -> bool:
        payloads = self._descriptors[wire.PAYLOAD :: wire.PER_PROCESS]
        *others, deciding = (os.pread(descriptor, 1, 0) == wire.STARTED for descriptor in payloads)
        # Tests whose own set-up fails end the run before a slow solution has begun: that is no fault of the sandbox.
        solutions = (started or ended for started, ended in zip(others, reply["cut_short"], strict=False))
        return reply["verdict"] == "timeout" or (deciding and all(solutions))

    def finish(self, reply: dict[str, Any]) -> Execution:
        """Return the execution that the server's reply and the files describe, and close the files."""
        try:
            if "failure" in reply:
                return failure(str(reply["failure"]))
            stderr = self._read(wire.STDERR, _STDERR_TAIL).decode("utf-8", "replace")
            code = reply["codes"][-1]
            if not self._could_start(reply):
                return failure(f"the sandbox could not be put on: {stderr or f'exit code {code}'}", reply["seconds"])
            stdout, result = self._read(wire.STDOUT), self._read(wire.RESULT)
            return Execution(
                ending=self._ending(code, reply["verdict"], result),
                stdout=stdout,
                stderr=stderr,
                exit_code=code,
                seconds=reply["seconds"],
                result=result,
            )
        finally:
            self.close()

    def _ending(self, code: int, verdict: str, result: bytes) -> Ending:
        if verdict:
            return _ENDINGS[verdict]
        files = self._descriptors[-wire.PER_PROCESS + wire.STDOUT], self._descriptors[-wire.PER_PROCESS + wire.STDERR]
        if max(os.fstat(descriptor).st_size for descriptor in files) >= self.limits.output_bytes:
            return Ending.OUTPUT_LIMIT
        if code == 0:
            return Ending.FINISHED
        # Nobody but the kernel short of memory kills a run without a verdict.
        if code == -signal.SIGKILL or result.endswith(b'{"raised": "MemoryError"}'):
            return Ending.OUT_OF_MEMORY
        return Ending.FAILED
