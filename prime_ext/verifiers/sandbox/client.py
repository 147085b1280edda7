# SPDX-License-Identifier: Apache-2.0
"""The sandbox for the rest of the package: a pool of fork servers."""

import functools
import json
import marshal
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prime_ext.utils.errors import WorkerDied
from prime_ext.verifiers.sandbox import harness, system_calls
from prime_ext.verifiers.sandbox.runs import (
    Ending,
    Execution,
    Limits,
    Protection,
    SandboxUnavailable,
    failure,
)
from prime_ext.verifiers.worker_pool import Pool, Worker

__all__ = [
    "Ending",
    "Execution",
    "Limits",
    "Protection",
    "Sandbox",
    "SandboxUnavailable",
    "find_protection",
]

_START_SECONDS = 60.0
_GRACE_SECONDS = 15.0
_STDERR_TAIL = 4096
_ROOT = str(Path(__file__).resolve().parents[3])
_BOOT = """
import json, sys
settings = json.loads(sys.argv[1])
sys.path[0] = settings["root"]
from prime_ext.verifiers.sandbox.fork_server import main
sys.path.pop(0)
sys.argv = ["program.py"]
main(settings)
"""
# A program that tries the protections, to find out what this machine really offers: it prints a
# line for each that is missing. Its input is the name of a file that must be out of reach. At first
# it imports modules, starts a thread and writes a file, as ordinary programs do.
_PROBE_LIMITS = Limits(seconds=60.0, memory_bytes=2 << 30)
_PROBE = f"""
import socket, sys, threading
thread = threading.Thread(target=lambda: open("ordinary", "w").close())
thread.start()
thread.join()
open("ordinary").close()
outside = sys.stdin.read()
for line, attempt in (
    (
        "no system call filter: pip install pyseccomp, and libseccomp2 from the distribution",
        socket.socket,
    ),
    ("no Landlock (Linux 5.13, landlock in the kernel's lsm= list)", lambda: open(outside)),
    ("no resource limits", lambda: bytearray({_PROBE_LIMITS.memory_bytes})),
):
    try:
        attempt()
        print(line)
    except (PermissionError, MemoryError):
        pass
"""
# One thread per process, and the same order of sets in every run.
_ENVIRONMENT = {
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "PYTHONHASHSEED": "0",
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "LC_ALL": "C.UTF-8",
}


def _list_readable_paths() -> list[str]:
    """Return the paths that a program must read for its imports."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    if "/" in prefixes:
        prefixes = set(sysconfig.get_paths().values())
    python = sorted({os.path.realpath(path) for path in prefixes} | prefixes)
    return [*python, "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime"]


class ServerProcess(Worker):
    """A running fork server. Raises ``SandboxUnavailable``: no start, or too little protection."""

    def __init__(self, unsafe_no_sandbox: bool) -> None:
        if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
            raise SandboxUnavailable("the code sandbox needs Linux 5.9 or newer")
        program = b""
        reason = ""
        try:
            program = system_calls.build()
        except (ImportError, RuntimeError, OSError) as error:
            reason = f"seccomp: {error}"
        self.base = tempfile.mkdtemp(prefix="prime_ext_sandbox_")
        self._log = tempfile.TemporaryFile()
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client = os.pidfd_open(os.getpid())
        try:
            self.process = self._spawn(theirs.fileno(), client, program)
        except OSError as error:
            self._connection.close()
            os.rmdir(self.base)
            raise SandboxUnavailable(
                f"{sys.executable or 'sys.executable'!r} cannot be started: {error}"
            ) from error
        finally:
            theirs.close()
            os.close(client)
        try:
            self.protection = self._examine(reason)
            if self.protection.missing and not unsafe_no_sandbox:
                reasons = "; ".join(self.protection.missing)
                raise SandboxUnavailable(
                    f"model-written programs are not run here: {reasons}. unsafe_no_sandbox=True"
                    " runs them all the same"
                )
        except BaseException:
            self.end()
            raise

    def _examine(self, reason: str) -> Protection:
        """Wait for the server and test its protections; ``reason``: why the filter is missing."""
        hello = self._receive(_START_SECONDS)
        if hello is None:
            raise SandboxUnavailable(
                f"the sandbox's fork server did not start: {self._read_log() or 'no reason given'}"
            )
        with tempfile.NamedTemporaryFile(dir=self.base) as outside:
            payload = marshal.dumps({"program": _PROBE})
            execution = self.run(("program", payload, outside.name.encode(), _PROBE_LIMITS))
        missing = ["an ordinary program does not run under the protections"]
        if execution.ending is Ending.FINISHED:
            missing = execution.stdout.decode().splitlines()
        return Protection(
            hello["landlock_abi"], [*missing, reason] if missing and reason else missing
        )

    def _spawn(self, connection: int, client: int, program: bytes) -> subprocess.Popen[bytes]:
        settings = {
            "root": _ROOT,
            "connection": connection,
            "client": client,
            "base": self.base,
            "readable": _list_readable_paths(),
            "filter": program.hex(),
        }
        words = [sys.executable, "-s", "-X", "utf8", "-c", _BOOT, json.dumps(settings)]
        inherited = {
            name: os.environ[name]
            for name in ("LD_LIBRARY_PATH", "PYTHONHOME")
            if name in os.environ
        }
        return subprocess.Popen(
            words,
            # Regular files, as in the runs: children inherit what Python's standard streams find
            # out about theirs.
            stdin=self._log,
            stdout=self._log,
            stderr=self._log,
            env=_ENVIRONMENT | inherited,
            cwd=self.base,
            pass_fds=(connection, client),
            # Control-C in a terminal ends the trainer, not the server under it.
            start_new_session=True,
        )

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """Return the server's next message, None if it is gone or silent."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        data = self._connection.recv(1 << 16) if poll.poll(seconds * 1000) else b""
        return json.loads(data) if data else None

    def _read_log(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), 2000, max(0, size - 2000)).decode("utf-8", "replace")
        return tail.strip().replace("\n", " | ")

    def run(self, task: tuple[str, bytes, bytes, Limits]) -> Execution:
        """Do a run: role, payload, standard input and limits."""
        role, payload, stdin, limits = task
        files: list[int] = []
        try:
            for content in (stdin, b"", b"", payload, b""):
                files.append(_open_file(content))
            message = json.dumps({"role": role, "limits": asdict(limits)}).encode()
            socket.send_fds(self._connection, [message], files)
            reply = self._receive(limits.seconds + _GRACE_SECONDS)
            if reply is None:
                raise OSError("it does not answer" if self.process.poll() is None else "it ended")
            return _execution(reply, files, limits)
        except OSError as error:
            raise WorkerDied(
                f"fork server: {', '.join(filter(None, (str(error), self._read_log())))}"
            ) from error
        finally:
            for descriptor in files:
                os.close(descriptor)

    def end(self) -> None:
        """End the server with its run and remove its directory."""
        super().end()
        self._connection.close()
        shutil.rmtree(self.base, ignore_errors=True)


def _open_file(content: bytes) -> int:
    descriptor = os.memfd_create("prime_ext")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _execution(reply: dict[str, Any], files: list[int], limits: Limits) -> Execution:
    """Read the server's reply and the files of the child."""
    if "failure" in reply:
        return failure(str(reply["failure"]))

    def read(kind: int, tail: int | None = None) -> bytes:
        size = os.fstat(files[kind]).st_size
        start = 0 if tail is None else max(0, size - tail)
        return os.pread(files[kind], size - start, start)

    stderr = read(harness.STDERR, _STDERR_TAIL).decode("utf-8", "replace")
    verdict = reply["verdict"]
    code = reply["code"]
    started = os.pread(files[harness.PAYLOAD], 1, 0) == harness.STARTED
    if verdict != "timeout" and not started:
        return failure(
            f"the sandbox could not be put on: {stderr or f'exit code {code}'}", reply["seconds"]
        )
    stdout = read(harness.STDOUT)
    result = read(harness.RESULT)
    written = max(os.fstat(files[kind]).st_size for kind in (harness.STDOUT, harness.STDERR))
    if verdict:
        ending = Ending(verdict)
    elif written >= limits.output_bytes:
        ending = Ending.OUTPUT_LIMIT
    elif code == 0:
        ending = Ending.FINISHED
    # Only the kernel, short of memory, kills a run without a verdict.
    elif code == -signal.SIGKILL or result.endswith(harness.OUT_OF_MEMORY):
        ending = Ending.OUT_OF_MEMORY
    else:
        ending = Ending.FAILED
    return Execution(ending, stdout, stderr, code, reply["seconds"], result)


class Sandbox(Pool):
    """Thread-safe sandbox that runs each hostile Python program in a confined process of its own.

    Args:
        limits: limits of a run unless it brings its own.
        workers: most runs at a time; None: one per processor that this process may use.
        unsafe_no_sandbox: run programs even where the machine cannot confine them, in place of
            ``SandboxUnavailable``.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        workers: int | None = None,
        *,
        unsafe_no_sandbox: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        super().__init__(workers, functools.partial(ServerProcess, unsafe_no_sandbox), failure)
        # Starts the first server.
        execution = self.run("")
        if execution.ending is Ending.SANDBOX_FAILURE:
            self.close()
            raise SandboxUnavailable(execution.stderr)

    def start(
        self, role: str, payload: dict[str, Any], stdin: bytes = b"", limits: Limits | None = None
    ) -> "Future[Execution]":
        """Queue a run and return its future, which never raises for what a program does.

        ``payload`` has the arguments of a role (``program``, ``call`` or ``tests``) of the harness.
        ``ValueError``: it is nested too deeply. ``RuntimeError``: the sandbox is closed.
        """
        return self._put((role, marshal.dumps(payload), stdin, limits or self.limits))

    def submit(
        self, program: str, stdin: bytes | str = b"", limits: Limits | None = None
    ) -> "Future[Execution]":
        """Queue a script and its standard input, and return the future of :meth:`start`."""
        content = stdin.encode("utf-8", "surrogatepass") if isinstance(stdin, str) else stdin
        return self.start("program", {"program": program}, content, limits)

    def run(
        self, program: str, stdin: bytes | str = b"", limits: Limits | None = None
    ) -> Execution:
        """Run a script on its standard input and wait for its end."""
        return self.submit(program, stdin, limits).result()


def find_protection() -> Protection:
    """Start a server and return its protections, or raise ``SandboxUnavailable``."""
    server = ServerProcess(unsafe_no_sandbox=True)
    server.end()
    return server.protection
