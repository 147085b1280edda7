# SPDX-License-Identifier: Apache-2.0
"""Limits, results and confinement of a run."""

import enum
import math
from dataclasses import dataclass


class Ending(str, enum.Enum):
    """Ways in which a run ends. Only the output of a ``finished`` one counts."""

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
    """Limits of one run, enforced by the server and the kernel. ``ValueError``: out of range."""

    # wall time without waiting for a worker; processor time of all threads: two seconds more
    seconds: float = 10.0
    memory_bytes: int = 1 << 30  # address space, including 50 to 150 MB of the interpreter
    # of standard output, of standard error and of every file that the program writes
    output_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        if not (isinstance(self.seconds, int | float) and 0 < self.seconds < math.inf):
            raise ValueError(f"seconds={self.seconds!r} must be a number > 0")
        for name, low in (("memory_bytes", 64 << 20), ("output_bytes", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ValueError(f"{name}={value!r} must be a whole number >= {low}")

    @property
    def cpu_seconds(self) -> int:
        return int(self.seconds) + 2


@dataclass(frozen=True)
class Execution:
    """Results of a run."""

    ending: Ending
    stdout: bytes = b""
    stderr: str = ""  # the last 4 KB, or the failure of the sandbox
    exit_code: int | None = None  # minus the signal that ended it; None if the sandbox failed
    seconds: float = 0.0  # wall time of the run alone
    # report of the harness on calls and tests; the program can write there, too
    result: bytes = b""


@dataclass(frozen=True)
class Protection:
    """Confinement of programs on this machine."""

    landlock_abi: int  # of the kernel, 0 for none
    missing: list[str]  # lines with the remedy; empty if model-written programs may run

    def describe(self) -> str:
        if self.missing:
            return f"NOT sufficient: {'; '.join(self.missing)}"
        return f"sufficient: Landlock ABI {self.landlock_abi}, system call filter, limits"


class SandboxUnavailable(RuntimeError):
    """Programs cannot be confined here, or the server did not start; the message has the remedy."""


def failure(reason: str, seconds: float = 0.0) -> Execution:
    """Return the execution of a run that the sandbox could not carry out."""
    return Execution(Ending.SANDBOX_FAILURE, stderr=reason, seconds=seconds)
