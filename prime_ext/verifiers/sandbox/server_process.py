# SPDX-License-Identifier: Apache-2.0
"""One fork server as its client sees it: start it, in bubblewrap if there is one, talk to it, notice its death.

Bubblewrap gives the server a file system, network, process table and inter-process communication of its own.
"""

import json
import logging
import os
import select
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prime_ext.verifiers.sandbox import wire
from prime_ext.verifiers.sandbox.limits import SandboxUnavailable
from prime_ext.verifiers.sandbox.probe import Protection

logger = logging.getLogger(__name__)

_START_SECONDS = 60.0
# What is seen inside bubblewrap.
_SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
_BASE_BYTES = 256 << 20
# Exists everywhere, except inside bubblewrap.
_WITNESS = "/etc/passwd"
_ROOT = str(Path(__file__).resolve().parents[3])
_BOOT = """
import json, sys
settings = json.loads(sys.argv[1])
sys.path[0] = settings["root"]
from prime_ext.verifiers.sandbox.server import main
sys.path.pop(0)
sys.argv = ["program.py"]
main(settings)
"""
# One thread per process, and the same order of sets in every run.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "LC_ALL": "C.UTF-8",
}


@dataclass(frozen=True)
class Options:
    """How a server is started; see :class:`~prime_ext.verifiers.sandbox.client.Sandbox`."""

    workers: int
    bubblewrap: str = "auto"
    unsafe_no_sandbox: bool = False
    left_out: tuple[str, ...] = ()


def python_paths() -> list[str]:
    """Return the directories that a program needs to read for its imports."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    if "/" in prefixes:
        prefixes = set(sysconfig.get_paths().values())
    return sorted({os.path.realpath(path) for path in prefixes} | prefixes)


def _find_bubblewrap() -> str | None:
    """Return the path of ``bwrap`` if it is installed and works for this user, else None."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    try:
        tried = subprocess.run(
            [*_bubblewrap(path, (), "/tmp/base"), "/usr/bin/env", "true"],
            capture_output=True,
            timeout=10,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return path if tried.returncode == 0 else None


def _bubblewrap(path: str, readable: Sequence[str], base: str) -> list[str]:
    """Return the words to put before the server's command line. ``base`` becomes a small file system in memory.

    Without Landlock, all runs of one server can reach each other's directories below it, and no more.
    """
    words = [path, "--unshare-all", "--new-session", "--die-with-parent", "--cap-drop", "ALL"]
    # The empty /tmp first: the Python installation may lie below it.
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for name in (*_SYSTEM_PATHS, *readable):
        if os.path.islink(name) and name in _SYSTEM_PATHS:
            words += ["--symlink", os.readlink(name), name]
        else:
            words += ["--ro-bind-try", name, name]
    return [*words, "--size", str(_BASE_BYTES), "--tmpfs", base, "--chdir", base]


def start_server(options: Options) -> "ServerProcess":
    """Start a server, in bubblewrap if the options allow, and without it if it does not start there.

    Raises:
        SandboxUnavailable: it does not start, or what it can offer does not suffice.
    """
    if options.bubblewrap == "never":
        return ServerProcess(options, None)
    wrapper = _find_bubblewrap()
    if options.bubblewrap == "always":
        if wrapper is None:
            raise SandboxUnavailable("bubblewrap=always, but bwrap is not installed or does not work here")
        return ServerProcess(options, wrapper)
    if wrapper is not None:
        try:
            return ServerProcess(options, wrapper)
        except SandboxUnavailable as error:
            logger.warning("code sandbox: going on without bubblewrap, in which it does not start: %s", error)
    return ServerProcess(options, None)


class ServerProcess:
    """A running fork server."""

    def __init__(self, options: Options, wrapper: str | None) -> None:
        """Start the server and wait until it has reported its protections.

        Raises:
            SandboxUnavailable: it does not start, or what it can offer does not suffice.
        """
        if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
            raise SandboxUnavailable("the code sandbox needs Linux 5.9 or newer")
        self.base = tempfile.mkdtemp(prefix="prime_ext_sandbox_")
        self._log = tempfile.TemporaryFile()
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client = os.pidfd_open(os.getpid())
        try:
            self._process = self._spawn(options, wrapper, theirs.fileno(), client)
        except OSError as error:
            self.connection.close()
            os.rmdir(self.base)
            raise SandboxUnavailable(f"{sys.executable or 'sys.executable'!r} cannot be started: {error}") from error
        finally:
            theirs.close()
            os.close(client)
        self.protection = self._greeting(options)

    def _spawn(self, options: Options, wrapper: str | None, connection: int, client: int) -> subprocess.Popen[bytes]:
        python = python_paths()
        readable = [*python, "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime"]
        settings = {
            "root": _ROOT,
            "connection": connection,
            "client": client,
            "base": self.base,
            "readable": readable,
            "left_out": list(options.left_out),
            "workers": options.workers,
            "witness": _WITNESS if wrapper else "",
        }
        words = [sys.executable, "-s", "-X", "utf8", "-c", _BOOT, json.dumps(settings)]
        if wrapper:
            visible = [*python, os.path.dirname(os.path.realpath(sys.executable)), _ROOT]
            words = _bubblewrap(wrapper, visible, self.base) + words
        environment = dict(_ENVIRONMENT)
        for name in ("LD_LIBRARY_PATH", "PYTHONHOME"):
            if name in os.environ:
                environment[name] = os.environ[name]
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=environment,
            cwd=self.base,
            pass_fds=(connection, client),
            # Control-C in a terminal ends the trainer, not the server under it.
            start_new_session=True,
        )

    def _greeting(self, options: Options) -> Protection:
        ready, _, _ = select.select([self.connection], [], [], _START_SECONDS)
        hello = wire.receive(self.connection)[0] if ready else None
        if hello is None:
            self.stop()
            raise SandboxUnavailable(f"the sandbox's fork server did not start: {self.log_tail() or 'no reason given'}")
        protection = Protection(**hello["protection"])
        if not protection.sufficient and not options.unsafe_no_sandbox:
            self.stop()
            reasons = "; ".join(protection.missing)
            raise SandboxUnavailable(
                f"model-written programs are not run here: {reasons}. unsafe_no_sandbox=True runs them all the same"
            )
        return protection

    def log_tail(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), 2000, max(0, size - 2000)).decode("utf-8", "replace")
        return tail.strip().replace("\n", " | ")

    @property
    def pid(self) -> int:
        """Process id of the server, or of the bubblewrap around it."""
        return self._process.pid

    def kill(self) -> None:
        """End the server and, because they die with it, all of its runs."""
        self._process.kill()

    def stop(self) -> None:
        """End the server and remove what it left in the file system."""
        self.connection.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.base, ignore_errors=True)
