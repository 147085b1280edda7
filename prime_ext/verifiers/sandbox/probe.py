# SPDX-License-Identifier: Apache-2.0
"""A run that tries every protection, to find out what this machine really offers."""

import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prime_ext.verifiers.sandbox.harness import RESULT
from prime_ext.verifiers.sandbox.runs import Limits

LIMITS = Limits(seconds=60.0, memory_bytes=2 << 30, output_bytes=1 << 20)
_EFBIG = 27


@dataclass(frozen=True)
class Protection:
    """What confines a program on this machine."""

    landlock_abi: int  # of the kernel, 0 for none
    missing: list[str]  # lines with the remedy; empty if model-written programs may run

    def describe(self) -> str:
        if self.missing:
            return f"NOT sufficient: {'; '.join(self.missing)}"
        return f"sufficient: Landlock ABI {self.landlock_abi}, system call filter, limits"


def _is_refused(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except (PermissionError, MemoryError):
        return True
    except OSError as error:
        return error.errno == _EFBIG
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


def _run_ordinary_program() -> None:
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


def run_probe(payload: dict[str, Any]) -> None:
    """Report what is missing here as a JSON list. ``payload["outside"]`` is a file that must be out of reach."""
    outside = payload["outside"]
    needed: dict[str, list[Callable[[], Any]]] = {
        "no system call filter: pip install pyseccomp, and libseccomp2 from the distribution": [
            _fork,
            socket.socket,
            lambda: os.kill(os.getppid(), 0),
            # Last, for without a filter it would succeed.
            lambda: os.execv(sys.executable, [sys.executable, "-c", ""]),
        ],
        "no Landlock (Linux 5.13, landlock in the kernel's lsm= list)": [
            lambda: _read(outside),
            lambda: _write(outside),
            lambda: _write(outside + "-new"),
        ],
        "no resource limits": [
            lambda: bytearray(LIMITS.memory_bytes + 1),
            lambda: _write("large", LIMITS.output_bytes + 1),
        ],
    }
    _run_ordinary_program()
    missing = [line for line, attempts in needed.items() if not all(map(_is_refused, attempts))]
    os.write(RESULT, json.dumps(missing).encode())
    os._exit(0)
