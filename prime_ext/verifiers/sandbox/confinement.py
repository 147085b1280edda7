# SPDX-License-Identifier: Apache-2.0
"""Confinement of a forked child before it reads the program.

The order in the child matters: limits, then Landlock, which needs open directories, then the system
call filter, which forbids all of this. The server itself takes on the restrictions that are the
same for all runs before it forks.

Landlock lets a program read the Python installation and write one directory. It needs no privileges
and no namespaces; its three system calls go through ctypes because no library in use offers them.
The kernel's ABI number says what it covers: 1 files (5.13), 2 links, 3 truncation (6.2), 4 TCP
(6.7), 5 device ioctls, 6 signals and abstract sockets (6.12). Source: the kernel's
``include/uapi/linux/landlock.h``.
"""

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Sequence

from prime_ext.verifiers.sandbox.runs import Limits

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_MAIN_STACK_BYTES = 64 << 20

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (
    1 << bit for bit in range(6)
)
_MAKE_REGULAR = 1 << 8
_TRUNCATE = 1 << 14
# The file rights that each ABI can refuse: bits 0 to 12, then refer, truncate and device ioctl.
_FILE_RIGHTS = {
    1: (1 << 13) - 1,
    2: (1 << 14) - 1,
    3: (1 << 15) - 1,
    4: (1 << 15) - 1,
    5: (1 << 16) - 1,
}
_TCP_RIGHTS = 0b11  # bind, connect
_SCOPES = 0b11  # abstract unix sockets, signals
_READ = _READ_FILE | _READ_DIR
# No directories, links, pipes, sockets or devices: the working directory stays flat and is quickly
# removed.
_WORK = _READ | _WRITE_FILE | _MAKE_REGULAR | _REMOVE_FILE | _TRUNCATE
_DEVICES = dict.fromkeys(
    ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"), _READ_FILE | _WRITE_FILE
)

_libc = ctypes.CDLL(None, use_errno=True)


def _check_result(result: int, what: str) -> int:
    """Return the result of a function of libc, or raise its OSError."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def prctl(option: int, value: int) -> None:
    _check_result(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def _landlock(number: int, *arguments: object) -> int:
    return _check_result(
        _libc.syscall(ctypes.c_long(number), *arguments), f"Landlock system call {number}"
    )


def landlock_abi() -> int:
    """Return the kernel's Landlock ABI, 0 if it has none or has it switched off."""
    try:
        return _landlock(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError:
        return 0


def _restrict(abi: int, rules: Sequence[tuple[int, int]]) -> None:
    """Restrict this thread to rules (``O_PATH`` descriptor, rights below); needs NO_NEW_PRIVS."""
    handled = _FILE_RIGHTS[min(abi, 5)]
    attributes = struct.pack(
        "QQQ", handled, _TCP_RIGHTS if abi >= 4 else 0, _SCOPES if abi >= 6 else 0
    )
    # Older kernels reject the fields that they do not know, unless these are zero.
    ruleset = _landlock(
        _CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
    )
    try:
        for descriptor, rights in rules:
            rule = struct.pack("=Qi", rights & handled, descriptor)
            _landlock(
                _ADD_RULE,
                ctypes.c_int(ruleset),
                ctypes.c_int(_RULE_PATH_BENEATH),
                rule,
                ctypes.c_uint32(0),
            )
        _landlock(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


class Filter(ctypes.Structure):
    """A filter of :mod:`prime_ext.verifiers.sandbox.system_calls`, laid out once for the kernel."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

    def __init__(self, program: bytes) -> None:
        super().__init__(len(program) // struct.calcsize("HBBI"), program)


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


class Confinement:
    """Confinement of all children of one server, which loses its own privileges here already.

    ``program`` is the system call filter, or empty; ``readable`` are directories and files that
    programs may read. Raises ``OSError``: the kernel refused.
    """

    def __init__(self, program: bytes, readable: Sequence[str]) -> None:
        self.landlock_abi = landlock_abi()
        self._filter = Filter(program) if program else None
        _lower(resource.RLIMIT_STACK, _MAIN_STACK_BYTES)
        for kind in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE):
            _lower(kind, 0)
        # A backstop, for it counts all tasks of the user and does not bind root: the system call
        # filter refuses new processes, and the server counts threads.
        _lower(resource.RLIMIT_NPROC, 32768)
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
        # Make root as weak as its files allow: no capability is left, and none can be gained.
        nothing = struct.pack("6I", *[0] * 6)
        _check_result(_libc.capset(struct.pack("Ii", _CAPABILITY_VERSION_3, 0), nothing), "capset")
        # Nobody of the same user may look into or write such a process's memory through /proc.
        prctl(_PR_SET_DUMPABLE, 0)
        rights = {
            path: _READ if os.path.isdir(path) else _READ_FILE for path in readable
        } | _DEVICES
        paths = filter(os.path.exists, rights)
        self._rules = [(os.open(path, os.O_PATH | os.O_CLOEXEC), rights[path]) for path in paths]
        self.descriptors = [descriptor for descriptor, _ in self._rules]

    def put_on(self, work: str, limits: Limits, parent: int) -> None:
        """Confine this process for ever, writing only to ``work``. Raises ``OSError``: refused."""
        _lower(resource.RLIMIT_AS, limits.memory_bytes)
        _lower(resource.RLIMIT_CPU, limits.cpu_seconds)
        _lower(resource.RLIMIT_FSIZE, limits.output_bytes)
        _lower(resource.RLIMIT_NOFILE, 64)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # the parent has died already
        if self.landlock_abi:
            directory = os.open(work, os.O_PATH | os.O_CLOEXEC)
            _restrict(self.landlock_abi, [*self._rules, (directory, _WORK)])
            os.close(directory)
        if self._filter is not None:
            program = ctypes.byref(self._filter)
            _check_result(
                _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), program, 0, 0),
                "seccomp",
            )
