# SPDX-License-Identifier: Apache-2.0
"""A program that tries the protections, to find out what this machine really offers."""

from dataclasses import dataclass

from prime_ext.verifiers.sandbox.runs import Limits

LIMITS = Limits(seconds=60.0, memory_bytes=2 << 30)
# Its input is the name of a file that must be out of reach; it prints a line for each protection that is missing. At
# first it imports modules, starts a thread and writes a file, as ordinary programs do.
PROGRAM = f"""
import socket, sys, threading
thread = threading.Thread(target=lambda: open("ordinary", "w").close())
thread.start()
thread.join()
open("ordinary").close()
outside = sys.stdin.read()
for line, attempt in (
    ("no system call filter: pip install pyseccomp, and libseccomp2 from the distribution", socket.socket),
    ("no Landlock (Linux 5.13, landlock in the kernel's lsm= list)", lambda: open(outside)),
    ("no resource limits", lambda: bytearray({LIMITS.memory_bytes})),
):
    try:
        attempt()
        print(line)
    except (PermissionError, MemoryError):
        pass
"""


@dataclass(frozen=True)
class Protection:
    """What confines a program on this machine."""

    landlock_abi: int  # of the kernel, 0 for none
    missing: list[str]  # lines with the remedy; empty if model-written programs may run

    def describe(self) -> str:
        if self.missing:
            return f"NOT sufficient: {'; '.join(self.missing)}"
        return f"sufficient: Landlock ABI {self.landlock_abi}, system call filter, limits"
