# SPDX-License-Identifier: Apache-2.0
"""Fork server: single-threaded Python whose children run one hostile program each, one at a time.

Forking a trainer with threads and device handles is unsafe, and a new interpreter for every run is
slow. A child of this server has its modules already imported and costs two or three milliseconds.
The server never reads a program: packets hold limits and descriptors of anonymous files, so that
the next run inherits nothing of this one. The system call filter refuses new processes, so one
SIGKILL ends a run. Server and children end with the client.
"""

import ctypes
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Sequence
from typing import Any

from prime_ext.verifiers.sandbox import confinement, harness
from prime_ext.verifiers.sandbox.runs import Limits

_PR_SET_CHILD_SUBREAPER = 36
_CLOSE_RANGE = 436
# How often a run is checked, and the most threads and files in its folder that it may have then.
_TICK_SECONDS = 0.02
_MAX_THREADS = 64
_MAX_FILES = 32
_MAX_PACKET = 1 << 16
_MAX_DESCRIPTORS = 8

_libc = ctypes.CDLL(None, use_errno=True)

# Imported before the first fork. Only what many programs use: every shared library makes each fork
# slower, and random and threading renew their state after each.
PREWARMED = (
    "abc", "bisect", "collections.abc", "contextlib", "copy", "dataclasses", "datetime", "enum",
    "functools", "heapq", "io", "itertools", "json", "math", "operator", "re", "string", "time",
    "traceback", "types", "typing", "numpy",
)  # fmt: skip


class Child:
    """A child: forked here, confined, and doing its role until it ends or is killed."""

    def __init__(
        self,
        role: str,
        descriptors: Sequence[int],
        work: str,
        limits: Limits,
        protect: confinement.Confinement,
    ) -> None:
        self.work = work
        self.limits = limits
        self.status: int | None = None
        self.overspent = False  # of processor time
        server = os.getpid()
        os.mkdir(work, 0o700)
        try:
            self.pid = os.fork()
        except OSError:
            os.rmdir(work)
            raise
        if self.pid == 0:
            self._run_role(role, descriptors, protect, server)
        self.pidfd = os.pidfd_open(self.pid)

    def _run_role(
        self, role: str, descriptors: Sequence[int], protect: confinement.Confinement, server: int
    ) -> None:
        try:
            os.setsid()
            _renumber_descriptors(descriptors, protect.descriptors)
            os.chdir(self.work)
            protect.put_on(self.work, self.limits, server)
            _close_from(len(descriptors))
            payload = harness.read_payload()
            gc.enable()
        except BaseException:
            # The program has not been started, so the failure is the sandbox's.
            os.write(harness.STDERR, traceback.format_exc(limit=-3).encode())
            os._exit(1)
        try:
            harness.ROLES[role](payload)
        finally:
            # Whatever happens, the child must not run on as a second server.
            os._exit(1)

    def reap(self, options: int = os.WNOHANG) -> bool:
        if self.status is None:
            pid, status, usage = os.wait4(self.pid, options)
            if pid != 0:
                self.status = status
                self.overspent = usage.ru_utime + usage.ru_stime >= self.limits.cpu_seconds - 0.5
        return self.status is not None

    def misbehaves(self) -> bool:
        try:
            threads = os.stat(f"/proc/{self.pid}/task").st_nlink - 2
        except FileNotFoundError:
            threads = 0  # it has ended since
        return threads > _MAX_THREADS or len(os.listdir(self.work)) > _MAX_FILES

    def watch(self, client: int) -> str | None:
        """Wait; return why it must be killed, "" if it ended itself, None if the client is gone."""
        started = time.monotonic()
        while True:
            left = started + self.limits.seconds - time.monotonic()
            if not _wait(self.pidfd, client, max(0.0, min(left, _TICK_SECONDS))):
                return None
            ended = self.reap()
            age = time.monotonic() - started
            if self.overspent:
                return "timeout"
            if ended:
                return ""
            if age >= self.limits.seconds:
                return "timeout"
            if age >= _TICK_SECONDS and self.misbehaves():
                return "misbehaved"

    def end(self) -> int:
        """Kill it if it still runs, remove its files, and return its exit code."""
        # Killed before it is reaped, so that the number cannot have passed to another process.
        if not self.reap():
            os.kill(self.pid, signal.SIGKILL)
            self.reap(0)
        os.close(self.pidfd)
        _remove(self.work)
        return os.waitstatus_to_exitcode(self.status or 0)


def _wait(descriptor: int, client: int, seconds: float | None = None) -> bool:
    """Wait for the descriptor or the time; return False if the client is gone."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.register(client, select.POLLIN)
    ready = poll.poll(None if seconds is None else seconds * 1000 + 1)
    return client not in [ready_descriptor for ready_descriptor, _ in ready]


def _serve(
    connection: socket.socket, client: int, work: str, protect: confinement.Confinement
) -> None:
    while _wait(connection.fileno(), client):
        data, descriptors, _, _ = socket.recv_fds(
            connection, _MAX_PACKET, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            return
        message = json.loads(data)
        started = time.monotonic()
        reply: dict[str, Any]
        try:
            child = Child(message["role"], descriptors, work, Limits(**message["limits"]), protect)
        except OSError as error:
            reply = {"failure": f"fork server: {error}"}
        else:
            verdict = child.watch(client)
            seconds = time.monotonic() - started
            reply = {"verdict": verdict, "code": child.end(), "seconds": seconds}
            if verdict is None:
                return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        connection.send(json.dumps(reply).encode())


def _remove(work: str) -> None:
    # Flat: programs can make no directories. shutil would load five shared libraries.
    for name in os.listdir(work):
        os.unlink(os.path.join(work, name))
    os.rmdir(work)


def _close_from(first: int) -> None:
    # Not os.closerange, which on older C libraries closes a million descriptors one by one.
    if (
        _libc.syscall(
            ctypes.c_long(_CLOSE_RANGE), ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), 0
        )
        != 0
    ):
        raise OSError(ctypes.get_errno(), "close_range")


def _renumber_descriptors(descriptors: Sequence[int], keep: list[int]) -> None:
    """Move the descriptors to 0, 1, 2, ... and close those after the confinement's."""
    if min([*descriptors, *keep]) < len(descriptors):
        raise RuntimeError("a descriptor lies where another one has to go")
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
    _close_from(max(keep) + 1)


def main(settings: dict[str, Any]) -> None:
    connection = socket.socket(fileno=settings["connection"])
    confinement.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for name in PREWARMED:
        if importlib.util.find_spec(name):
            importlib.import_module(name)
    # Keep the low numbers taken, so that the descriptors of a run never lie where they have to go.
    for _ in harness.DESCRIPTORS:
        os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    protect = confinement.Confinement(bytes.fromhex(settings["filter"]), settings["readable"])
    os.environ.clear()
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"{threads} threads after the imports; a fork server must have one")
    gc.collect()
    gc.freeze()
    gc.disable()
    connection.send(json.dumps({"landlock_abi": protect.landlock_abi}).encode())
    base = settings["base"]
    try:
        _serve(connection, settings["client"], os.path.join(base, "run"), protect)
    finally:
        for name in os.listdir(base):
            _remove(os.path.join(base, name))
        os.rmdir(base)
