# SPDX-License-Identifier: Apache-2.0
"""What a run may use and what it leaves behind."""

import enum
import math
from dataclasses import dataclass


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
    """

    seconds: float = 10.0
    memory_bytes: int = 1 << 30
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
        result: what the harness reported on its own descriptor (calls, tests); the program can write there, too.
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
    """Return the execution of a run that the sandbox could not carry out."""
    return Execution(Ending.SANDBOX_FAILURE, stderr=reason, seconds=seconds)
