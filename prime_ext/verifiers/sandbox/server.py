# SPDX-License-Identifier: Apache-2.0
"""The fork server: a small single-threaded Python process whose children each run one hostile program.

Forking a trainer with its threads and device handles is unsafe, and a new interpreter for every run is slow; a child of
this server has its modules already imported and costs two or three milliseconds. The server never reads a program.
Every child is one process, for the system call filter lets none start another, so that one SIGKILL ends a run.

The server ends when its client closes the connection or dies (a pidfd tells), and its children die with it.
"""

import ctypes
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from prime_ext.verifiers.sandbox import confinement, harness, landlock, probe, system_calls, wire

_PR_SET_CHILD_SUBREAPER = 36
_CLOSE_RANGE = 436
_TICK_SECONDS = 0.02

_libc = ctypes.CDLL(None, use_errno=True)

# Imported before the first fork, so that programs find them loaded. Every shared library makes each fork dearer, and
# random and threading reseed and renew their state after each, hence only what many programs use.
PREWARMED = (
    "abc", "bisect", "collections.abc", "contextlib", "copy", "dataclasses", "datetime", "enum", "functools", "heapq",
    "io", "itertools", "json", "math", "operator", "re", "string", "time", "traceback", "types",
    "typing", "numpy",
)  # fmt: skip


@dataclass
class Process:
    pid: int
    pidfd: int
    work: str
    status: int | None = None
    cut_short: bool = False  # it still ran when the server ended it


@dataclass
class Run:
    """One run: a process, or the two of a suite. The last one decides when it is over."""

    number: int
    limits: dict[str, Any]
    started: float
    processes: list[Process] = field(default_factory=list)
    verdict: str = ""  # why the server ended it


class Server:
    """Serves one client, ``workers`` runs at a time."""

    def __init__(
        self, connection: socket.socket, client: int, base: str, workers: int, protect: confinement.Confinement
    ) -> None:
        self._workers = workers
        self._connection = connection
        self._client = client
        self._base = base
        self._confinement = protect
        self._runs: dict[int, Run] = {}
        self._by_pidfd: dict[int, tuple[Run, Process]] = {}
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._poll.register(client, select.POLLIN)
        self._waiting: deque[tuple[dict[str, Any], list[int]]] = deque()
        self._directories = 0

    def serve(self) -> None:
        """Serve until the client is gone."""
        while True:
            events = self._poll.poll(self._poll_milliseconds())
            for descriptor, _ in events:
                if descriptor == self._client:
                    return
                if descriptor == self._connection.fileno():
                    message, descriptors = wire.receive(self._connection)
                    if message is None:
                        return
                    self._waiting.append((message, descriptors))
                elif descriptor in self._by_pidfd:
                    self._reap(*self._by_pidfd[descriptor])
            self._watch()
            while self._waiting and len(self._runs) < self._workers:
                self._start(*self._waiting.popleft())

    def _poll_milliseconds(self) -> float | None:
        if not self._runs:
            return None
        next_deadline = min(run.started + run.limits["seconds"] for run in self._runs.values())
        return max(0.0, min(next_deadline - time.monotonic(), _TICK_SECONDS)) * 1000 + 1

    def _start(self, message: dict[str, Any], descriptors: list[int]) -> None:
        run = Run(message["run"], message["limits"], time.monotonic())
        channels: list[socket.socket] = list(socket.socketpair()) if len(message["roles"]) == 2 else []
        try:
            for index, role in enumerate(message["roles"]):
                given = descriptors[index * wire.PER_PROCESS : (index + 1) * wire.PER_PROCESS]
                if channels:
                    given = [*given, channels[index].fileno()]
                self._fork(run, role, given)
        except OSError as error:
            for process in run.processes:
                self._kill(process)
                self._forget(process)
            wire.send(self._connection, {"run": run.number, "failure": f"fork server: {error}"})
        else:
            self._runs[run.number] = run
        finally:
            for channel in channels:
                channel.close()
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, run: Run, role: str, descriptors: list[int]) -> None:
        self._directories += 1
        work = os.path.join(self._base, f"run-{self._directories}")
        os.mkdir(work, 0o700)
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os.rmdir(work)
            raise
        if pid == 0:
            self._be_child(run.limits, role, descriptors, work, server)
        process = Process(pid, os.pidfd_open(pid), work)
        run.processes.append(process)
        self._by_pidfd[process.pidfd] = (run, process)
        self._poll.register(process.pidfd, select.POLLIN)

    def _be_child(self, limits: dict[str, Any], role: str, descriptors: list[int], work: str, server: int) -> None:
        try:
            os.setsid()
            _place(descriptors, self._confinement.descriptors)
            os.chdir(work)
            self._confinement.put_on(work, limits["seconds"], limits["memory_bytes"], limits["output_bytes"], server)
            _close_from(len(descriptors))
            payload = harness.read_payload()
            gc.enable()
        except BaseException:
            # The program has not been started: whatever failed, it was the sandbox.
            os.write(wire.STDERR, traceback.format_exc(limit=-3).encode())
            os._exit(1)
        try:
            harness.ROLES[role](payload)
        finally:
            # Whatever happens, the child must not run on as a second server.
            os._exit(1)

    def _reap(self, run: Run, process: Process) -> None:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid == 0:
            return  # the event was of an earlier process with the same descriptor
        process.status = status
        if usage.ru_utime + usage.ru_stime >= confinement.cpu_seconds(run.limits["seconds"]) - 0.5:
            run.verdict = "timeout"
        self._forget(process)
        # The tests' process decides; a solution that goes first is found out by the tests.
        if process is run.processes[-1]:
            self._finish(run)

    def _forget(self, process: Process) -> None:
        self._poll.unregister(process.pidfd)
        del self._by_pidfd[process.pidfd]
        os.close(process.pidfd)
        _remove(process.work)

    def _kill(self, process: Process) -> None:
        if process.status is None:
            # Not reaped yet, so that the number cannot have passed to somebody else.
            pid, process.status = os.waitpid(process.pid, os.WNOHANG)
            if pid == 0:
                process.cut_short = True
                os.kill(process.pid, signal.SIGKILL)
                _, process.status = os.waitpid(process.pid, 0)

    def _finish(self, run: Run) -> None:
        seconds = time.monotonic() - run.started
        for process in run.processes:
            if process.status is None:
                self._kill(process)
                self._forget(process)
        del self._runs[run.number]
        reply = {
            "run": run.number,
            "verdict": run.verdict,
            "codes": [os.waitstatus_to_exitcode(process.status or 0) for process in run.processes],
            "cut_short": [process.cut_short for process in run.processes],
            "seconds": seconds,
        }
        wire.send(self._connection, reply)

    def _watch(self) -> None:
        now = time.monotonic()
        for run in list(self._runs.values()):
            age = now - run.started
            if age >= run.limits["seconds"]:
                run.verdict = "timeout"
            elif age >= _TICK_SECONDS and any(self._misbehaves(run, process) for process in run.processes):
                run.verdict = "misbehaved"
            if run.verdict:
                self._finish(run)

    def _misbehaves(self, run: Run, process: Process) -> bool:
        if process.status is not None:
            return False
        try:
            threads = os.stat(f"/proc/{process.pid}/task").st_nlink - 2
        except FileNotFoundError:
            threads = 0  # it has ended since
        return threads > run.limits["threads"] or len(os.listdir(process.work)) > run.limits["files"]

    def close(self) -> None:
        for run in self._runs.values():
            for process in run.processes:
                self._kill(process)
        for name in os.listdir(self._base):
            _remove(os.path.join(self._base, name))
        # In bubblewrap it is a file system of its own, which goes with the last process.
        if not os.path.ismount(self._base):
            os.rmdir(self._base)


def _remove(work: str) -> None:
    # Flat: programs can make no directories. shutil would load five shared libraries.
    for name in os.listdir(work):
        os.unlink(os.path.join(work, name))
    os.rmdir(work)


def _close_from(first: int) -> None:
    # Not os.closerange, which on older C libraries closes a million descriptors one by one.
    if _libc.syscall(ctypes.c_long(_CLOSE_RANGE), ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), 0) != 0:
        raise OSError(ctypes.get_errno(), "close_range")


def _place(descriptors: list[int], keep: list[int]) -> None:
    """Move the descriptors to 0, 1, 2, ... and close those of other runs, so that the limit on their number holds."""
    if min([*descriptors, *keep]) < len(descriptors):
        raise RuntimeError("a descriptor lies where another one has to go")
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
    _close_from(max(keep) + 1)


def _build_filter() -> tuple[bytes | None, str]:
    """Return the system call filter, or None and the reason. A child builds it, so that no run carries libseccomp."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = b"+" + system_calls.build()
        except (ImportError, RuntimeError, OSError) as error:
            answer = b"-" + f"seccomp: {error}".encode()
        os.write(writer, answer)
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answers:
        answer = answers.read()
    os.waitpid(pid, 0)
    if answer[:1] == b"+":
        return answer[1:], ""
    return None, answer[1:].decode() or "seccomp: the filter could not be built"


def _renew_standard_streams() -> None:
    """Make standard streams over regular files, as those of the runs are, for the children to inherit.

    What a stream knows about its file (can it seek, is it a terminal) is found out here once and not in every run.
    """
    keep = [os.dup(descriptor) for descriptor in (wire.STDIN, wire.STDOUT, wire.STDERR)]
    empty = os.memfd_create("empty")
    for descriptor in (wire.STDIN, wire.STDOUT, wire.STDERR):
        os.dup2(empty, descriptor)
    harness.renew_standard_streams()
    os.close(empty)
    for descriptor, kept in enumerate(keep):
        os.dup2(kept, descriptor)
        os.close(kept)


def main(settings: dict[str, Any]) -> None:
    """Run the server with what :mod:`client` put on the command line."""
    connection = socket.socket(fileno=settings["connection"])
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("prctl: cannot become the reaper of orphans")
    for name in PREWARMED:
        if importlib.util.find_spec(name):
            importlib.import_module(name)
    # Keep the low numbers taken, so that the descriptors of a run never lie where they have to go.
    for _ in range(wire.CHANNEL + 1):
        os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    left_out = settings["left_out"]
    program, reason = (None, "") if "seccomp" in left_out else _build_filter()
    protect = confinement.Confinement(
        landlock_abi=0 if "landlock" in left_out else landlock.abi(),
        filter_program=system_calls.Filter(program) if program else None,
        limits="rlimits" not in left_out,
        readable=tuple(settings["readable"]),
    )
    protect.prepare()
    os.environ.clear()
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"{threads} threads after the imports; a fork server must have one")
    _renew_standard_streams()
    protection = probe.examine(protect, settings["base"], settings["witness"], reason)
    gc.collect()
    gc.freeze()
    gc.disable()
    wire.send(connection, {"protection": protection})
    server = Server(connection, settings["client"], settings["base"], settings["workers"], protect)
    try:
        server.serve()
    finally:
        server.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
