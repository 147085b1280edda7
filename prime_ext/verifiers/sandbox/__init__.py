# SPDX-License-Identifier: Apache-2.0
"""Runs model-written Python programs in confined children of a small server process.

Covered: files (Landlock), network, processes, signals and everything else that needs a system call (seccomp), memory,
processor and wall time, output, threads. **Not** covered: side channels, faults of the kernel in the allowed system
calls, and load on processors and memory bandwidth within the limits.
"""

from typing import TYPE_CHECKING, Any

from prime_ext.verifiers.sandbox.probe import Protection
from prime_ext.verifiers.sandbox.runs import Ending, Execution, Limits, SandboxUnavailable

if TYPE_CHECKING:
    from prime_ext.verifiers.sandbox.client import Sandbox, find_protection

__all__ = ["Ending", "Execution", "Limits", "Protection", "Sandbox", "SandboxUnavailable", "find_protection"]


def __getattr__(name: str) -> Any:
    # Not above: the fork server imports this package as well, and the client's imports would slow every fork.
    if name in ("Sandbox", "find_protection"):
        from prime_ext.verifiers.sandbox import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
