# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Runs model-written Python programs where they can neither harm nor deceive.

:class:`Sandbox` forks confined children of a small server process on this machine;
:class:`~prime_ext.verifiers.sandbox.fusion.FusionSandbox` asks a SandboxFusion service instead.

What is covered: files (Landlock), network, processes, signals and everything else that needs a system call (seccomp),
memory, processor and wall time, output, threads. What is **not**: side channels, faults of the kernel in the system
calls that are allowed, and the load that a run may put on processors and memory bandwidth within its limits.
"""

from typing import TYPE_CHECKING, Any

from prime_ext.verifiers.sandbox.limits import Ending, Execution, Limits, SandboxUnavailable
from prime_ext.verifiers.sandbox.probe import Protection, find_protection
from prime_ext.verifiers.sandbox.requests import CallRequest, ProgramRequest, SuiteRequest

if TYPE_CHECKING:
    from prime_ext.verifiers.sandbox.client import Sandbox

__all__ = [
    "CallRequest", "Ending", "Execution", "Limits", "ProgramRequest", "Protection", "Sandbox", "SandboxUnavailable",
    "SuiteRequest", "find_protection",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Not above: the fork server imports this package as well, and what the client needs makes every fork dearer.
    if name == "Sandbox":
        from prime_ext.verifiers.sandbox.client import Sandbox

        return Sandbox
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
