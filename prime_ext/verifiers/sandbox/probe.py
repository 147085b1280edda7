# SPDX-License-Identifier: Apache-2.0
"""What protection this machine really offers, found by trying each one in a forked child."""

import dataclasses
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prime_ext.verifiers.sandbox.runs import Limits

if TYPE_CHECKING:
    from prime_ext.verifiers.sandbox.confinement import Confinement

_LIMITS = Limits(memory_bytes=2 << 30, output_bytes=1 << 20)


@dataclass(frozen=True)
class Protection:
    """What stands between a program and the machine.

    Attributes:
        landlock_abi: the kernel's Landlock ABI, 0 for none.
        files: Landlock refuses to read and write outside the allowed paths.
        tcp: Landlock refuses TCP connections (ABI 4).
        signals: Landlock refuses signals to other processes (ABI 6).
        system_calls: the filter refuses processes, sockets and signals.
        limits: memory and file sizes are limited.
        bubblewrap: the server has a file system, network and process table of its own.
        works: an ordinary program with threads and a temporary file runs under all of them together.
        reason: why something is missing, as far as known.
    """

    landlock_abi: int
    files: bool
    tcp: bool
    signals: bool
    system_calls: bool
    limits: bool
    bubblewrap: bool
    works: bool
    reason: str = ""

    @property
    def sufficient(self) -> bool:
        """Whether model-written programs may run: system call filter and limits, with Landlock or bubblewrap."""
        return self.works and self.system_calls and self.limits and (self.files or self.bubblewrap)

    @property
    def missing(self) -> list[str]:
        """What is needed and not there, one line each, with the remedy."""
        needed = {
            "no system call filter: pip install pyseccomp, and libseccomp2 from the distribution": self.system_calls,
            "neither Landlock (Linux 5.13, landlock in the kernel's lsm= list) nor bubblewrap (package bubblewrap)": (
                self.files or self.bubblewrap
            ),
            "no resource limits": self.limits,
            "an ordinary program does not run under the protections": self.works,
        }
        lines = [line for line, there in needed.items() if not there]
        return lines + ([self.reason] if self.reason and lines else [])

    def describe(self) -> str:
        """Return one line for logs and for the doctor."""
        parts = {
            f"Landlock ABI {self.landlock_abi}": self.files,
            "system call filter": self.system_calls,
            "limits": self.limits,
            "TCP by Landlock": self.tcp,
            "signals by Landlock": self.signals,
            "bubblewrap": self.bubblewrap,
        }
        have = ", ".join(name for name, active in parts.items() if active) or "nothing"
        lack = ", ".join(name for name, active in parts.items() if not active)
        verdict = "sufficient" if self.sufficient else "NOT sufficient"
        return f"{verdict}: {have}" + (f"; without {lack}" if lack else "")


def _refused(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except (PermissionError, MemoryError):
        return True
    except OSError as error:
        return error.errno == 27  # EFBIG
    return False


def _fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _read(path: str) -> None:
    with open(path, "rb") as file:
        file.read(1)


def _write(path: str, size: int = 1) -> None:
    with open(path, "wb") as file:
        file.write(bytes(size))


def _connect() -> None:
    with socket.socket() as connection:
        connection.settimeout(0.2)
        connection.connect(("127.0.0.1", 9))


def _ordinary_program() -> None:
    # Not above: a server with threading loaded forks more slowly.
    import threading

    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(sum(range(10))))
    thread.start()
    thread.join()
    _write("ordinary")
    os.unlink("ordinary")
    exec(compile("import numbers\nassert sum(range(10)) == 45", "ordinary.py", "exec"), {})
    assert seen == [45]


def _in_child(
    confinement: "Confinement", base: str, attempts: Mapping[str, Callable[[], Any]], check: Callable[..., bool]
) -> dict[str, bool]:
    """What the check finds of each attempt in a child under this confinement; nothing if that cannot be put on."""
    work = os.path.join(base, "probe")
    os.mkdir(work, 0o700)
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(10)
            os.chdir(work)
            confinement.put_on(work, _LIMITS, parent)
            os.write(writer, json.dumps({name: check(attempt) for name, attempt in attempts.items()}).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answers:
        answer = answers.read()
    os.waitpid(pid, 0)
    for name in os.listdir(work):
        os.unlink(os.path.join(work, name))
    os.rmdir(work)
    return json.loads(answer) if answer else {}


def _confined_by_bubblewrap(witness: str) -> bool:
    interfaces = [name for _, name in socket.if_nameindex()]
    return bool(witness) and not os.path.exists(witness) and interfaces in ([], ["lo"])


def examine(confinement: "Confinement", base: str, witness: str, reason: str) -> dict[str, Any]:
    """Try every protection and return the fields of :class:`Protection`. Runs in the fork server.

    ``witness``: a file outside ``base`` that exists, but not for a server inside bubblewrap; empty without it.
    """
    parent = os.getpid()
    outside = os.path.join(base, "outside")
    _write(outside)
    files: dict[str, Callable[[], Any]] = {
        "read": lambda: _read(outside),
        "write": lambda: _write(outside),
        "create": lambda: _write(outside + "-new"),
        "tcp": _connect,
        "signals": lambda: os.kill(parent, 0),
    }
    calls: dict[str, Callable[[], Any]] = {
        "fork": _fork,
        "socket": socket.socket,
        "kill": lambda: os.kill(parent, 0),
        "exec": lambda: os.execv(sys.executable, [sys.executable, "-c", ""]),
    }
    limits: dict[str, Callable[[], Any]] = {
        "memory": lambda: bytearray(_LIMITS.memory_bytes + 1),
        "size": lambda: _write("large", _LIMITS.output_bytes + 1),
    }
    # Each protection alone, then an ordinary program under all of them.
    bare = dataclasses.replace(confinement, landlock_abi=0, filter_program=None, limits=False)
    found = _in_child(dataclasses.replace(bare, landlock_abi=confinement.landlock_abi), base, files, _refused)
    found |= _in_child(dataclasses.replace(bare, filter_program=confinement.filter_program), base, calls, _refused)
    found |= _in_child(dataclasses.replace(bare, limits=confinement.limits), base, limits, _refused)
    found |= _in_child(confinement, base, {"works": _ordinary_program}, lambda program: program() is None)
    for path in filter(os.path.exists, (outside, outside + "-new")):
        os.unlink(path)

    def all_of(*names: str) -> bool:
        return all(found.get(name, False) for name in names)

    return dataclasses.asdict(
        Protection(
            landlock_abi=confinement.landlock_abi,
            files=all_of("read", "write", "create"),
            tcp=all_of("tcp"),
            signals=all_of("signals"),
            system_calls=all_of(*calls),
            limits=all_of(*limits),
            bubblewrap=_confined_by_bubblewrap(witness),
            works=all_of("works"),
            reason=reason,
        )
    )
