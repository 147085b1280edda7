# SPDX-License-Identifier: Apache-2.0
"""What a forked child does to itself before it looks at the program.

The server has given up capabilities and the rest of what is the same for all runs. In the child the order matters:
limits first, then Landlock, which opens nothing any more, then the system call
filter, which forbids everything above. Each protection can be left out by name, for the probe and its tests.
"""

import ctypes
import os
import resource
import signal
import struct
from dataclasses import dataclass, field

from prime_ext.verifiers.sandbox import landlock, system_calls

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITY_VERSION_3 = 0x20080522
_MAIN_STACK_BYTES = 64 << 20

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl {option}: {os.strerror(error)}")


def cpu_seconds(seconds: float) -> int:
    """Return the limit of processor seconds that goes with a wall time limit."""
    return int(seconds) + 2


def _drop_capabilities() -> None:
    """Make root as weak as its files allow: no capability is left, and none can be gained."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    if _libc.capset(header, struct.pack("6I", *[0] * 6)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"capset: {os.strerror(error)}")


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


@dataclass
class Confinement:
    """The confinement that every child of one server puts on, prepared once.

    Attributes:
        landlock_abi: the kernel's, 0 to leave Landlock out.
        filter_program: the system call filter, None to leave it out.
        limits: whether resource limits are set.
        readable: directories and files that programs may read.
    """

    landlock_abi: int
    filter_program: system_calls.Filter | None
    limits: bool
    readable: tuple[str, ...]
    _rules: list[tuple[int, int]] = field(default_factory=list)

    def prepare(self) -> None:
        """Weaken this process and open the readable paths once; called in the server before it forks.

        Its children inherit what it has given up, which saves time per run.

        Raises:
            OSError: the kernel refused.
        """
        if self.limits:
            _lower(resource.RLIMIT_STACK, _MAIN_STACK_BYTES)
            for kind in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE):
                _lower(kind, 0)
            # Counts all tasks of the user, the trainer's included, and does not bind root: no more than a backstop. New
            # processes are refused by the system call filter, threads are counted by the server.
            _lower(resource.RLIMIT_NPROC, 32768)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _drop_capabilities()
        # Nobody of the same user may look into or write such a process's memory through /proc.
        _prctl(_PR_SET_DUMPABLE, 0)
        rights = {path: landlock.READ if os.path.isdir(path) else landlock.READ_FILE for path in self.readable}
        rights |= dict.fromkeys(("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"), landlock.DEVICE)
        for path in filter(os.path.exists, rights):
            self._rules.append((os.open(path, os.O_PATH | os.O_CLOEXEC), rights[path]))

    @property
    def descriptors(self) -> list[int]:
        return [descriptor for descriptor, _ in self._rules]

    def put_on(self, work: str, seconds: float, memory_bytes: int, output_bytes: int, parent: int) -> None:
        """Confine this process for ever, ``work`` being the one directory that it may write, and ``parent`` its parent.

        Raises:
            OSError: the kernel refused a protection that the probe had found. The child must not go on then.
        """
        if self.limits:
            _lower(resource.RLIMIT_AS, memory_bytes)
            _lower(resource.RLIMIT_CPU, cpu_seconds(seconds))
            _lower(resource.RLIMIT_FSIZE, output_bytes)
            _lower(resource.RLIMIT_NOFILE, 64)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # the parent has died already
        if self.landlock_abi:
            directory = os.open(work, os.O_PATH | os.O_CLOEXEC)
            landlock.restrict(self.landlock_abi, [*self._rules, (directory, landlock.WORK)])
            os.close(directory)
        if self.filter_program is not None:
            self.filter_program.load()
