# SPDX-License-Identifier: Apache-2.0
"""Sandbox that runs model-written Python programs in confined children of a small server process.

Covered: files (Landlock), network, processes, signals and everything else that needs a system call
(seccomp), memory, processor and wall time, output, threads. **Not** covered: side channels, faults
of the kernel in the allowed system calls, and load on processors and memory bandwidth within the
limits. :mod:`~prime_ext.verifiers.sandbox.client` is for the rest of the package; nothing is
imported here, because the fork server imports this package too.
"""
