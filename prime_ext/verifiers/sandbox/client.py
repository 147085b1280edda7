# SPDX-License-Identifier: Apache-2.0
"""The sandbox as the rest of the package uses it.

One thread per sandbox talks to the fork server; callers wait on futures, so that a thousand concurrent requests cost no
thousand threads. No signal handlers, no forks of the caller's process: usable in threads, asyncio and Ray actors.
"""

import itertools
import logging
import os
import select
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from typing import Any

from prime_ext.utils.machine import available_cores
from prime_ext.verifiers.sandbox import wire
from prime_ext.verifiers.sandbox.job import Job, failure
from prime_ext.verifiers.sandbox.limits import Execution, Limits, SandboxUnavailable
from prime_ext.verifiers.sandbox.probe import Protection
from prime_ext.verifiers.sandbox.requests import ProgramRequest, Request
from prime_ext.verifiers.sandbox.server_process import Options, ServerProcess, start_server

logger = logging.getLogger(__name__)

_GRACE_SECONDS = 15.0
_MOST_ATTEMPTS = 2


class _Engine:
    """The client's side of one server and its successors; belongs to one process."""

    def __init__(self, options: Options) -> None:
        self.process_id = os.getpid()
        self._options = options
        # One run more than the server has workers lies ready there, so that none of them waits for this process.
        self._most_sent = options.workers + 1
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._running: dict[int, Job] = {}
        self._numbers = itertools.count()
        self._server: ServerProcess | None = None
        self._error: SandboxUnavailable | None = None
        self.closed = False
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main, name="prime_ext-sandbox", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    @property
    def server(self) -> ServerProcess:
        if self._server is None:
            raise SandboxUnavailable("the fork server is being started again")
        return self._server

    def submit(self, job: Job) -> None:
        with self._lock:
            if self.closed:
                raise SandboxUnavailable("the sandbox is closed")
            self._waiting.append(job)
            self._dispatch()

    def _dispatch(self) -> None:
        """Send waiting jobs as long as the server has room. Called with the lock held."""
        while self._waiting and self._server is not None and len(self._running) < self._most_sent:
            job = self._waiting.popleft()
            if job.attempts == 0 and not job.future.set_running_or_notify_cancel():
                continue
            number = next(self._numbers)
            self._running[number] = job
            try:
                message, descriptors = job.open(number)
                wire.send(self._server.connection, message, descriptors)
            except OSError as error:
                # A dead server is noticed by the thread, which tries the running jobs again.
                logger.warning("code sandbox: sending a run failed: %s", error)
                self._server.kill()
                return

    def _main(self) -> None:
        # The server is started from this thread because bubblewrap dies with the thread that started it.
        try:
            self._server = start_server(self._options)
        except SandboxUnavailable as error:
            self._error = error
            self.closed = True
            return
        finally:
            self._started.set()
        try:
            while not self.closed:
                if not self._listen(self._server):
                    self._server.stop()
                    if not self.closed and not self._restart(self._server):
                        break
        finally:
            # Whatever ends this thread, nobody may wait for it for ever.
            self.closed = True
            self._server.stop()
            self._abandon("the sandbox was closed")

    def _listen(self, server: ServerProcess) -> bool:
        """Handle the server's messages until it is gone (False) or the sandbox is closed."""
        poll = select.poll()
        poll.register(server.connection.fileno(), select.POLLIN)
        while not self.closed:
            if not poll.poll(1000):
                self._check_for_hang(server)
                continue
            try:
                reply, _ = wire.receive(server.connection)
            except OSError:
                return False
            if reply is None:
                return False
            self._complete(reply)
        return True

    def _complete(self, reply: dict[str, Any]) -> None:
        with self._lock:
            job = self._running.pop(reply["run"])
            self._dispatch()
        execution = job.finish(reply)
        # Outside the lock: callbacks submit the next test.
        job.future.set_result(execution)

    def _check_for_hang(self, server: ServerProcess) -> None:
        now = time.monotonic()
        with self._lock:
            # A run may have waited in the server for one before it.
            patience = 2 * max((job.limits.seconds for job in self._running.values()), default=0.0) + _GRACE_SECONDS
            late = [job for job in self._running.values() if now > job.sent_at + patience]
        if late:
            logger.error("code sandbox: the fork server does not answer; it is started again")
            server.kill()

    def _restart(self, dead: ServerProcess) -> bool:
        """Start a new server; what was running is tried once more, then given up. False if it does not start."""
        logger.warning("code sandbox: the fork server died (%s); it is started again", dead.log_tail() or "no message")
        given_up = []
        with self._lock:
            self._server = None
            for job in self._running.values():
                job.close()
                if job.attempts < _MOST_ATTEMPTS:
                    self._waiting.appendleft(job)
                else:
                    given_up.append(job)
            self._running.clear()
        for job in given_up:
            job.future.set_result(failure("the fork server died twice during this run"))
        try:
            server = start_server(self._options)
        except SandboxUnavailable as error:
            with self._lock:
                self.closed = True
                self._server = dead
            self._abandon(str(error))
            return False
        with self._lock:
            self._server = server
            self._dispatch()
        return True

    def _abandon(self, reason: str) -> None:
        with self._lock:
            jobs = [*self._running.values(), *self._waiting]
            self._running.clear()
            self._waiting.clear()
        for job in jobs:
            job.close()
            if job.attempts or job.future.set_running_or_notify_cancel():
                job.future.set_result(failure(reason))

    def close(self) -> None:
        """End the server, its runs and the thread."""
        if self.process_id != os.getpid():
            return  # a forked copy, whose thread does not exist
        with self._lock:
            self.closed = True
            if self._server is not None:
                self._server.kill()
        if self._thread is not threading.current_thread():
            self._thread.join(10)


class Sandbox:
    """Runs hostile Python programs, at most ``workers`` at a time, each in a confined process of its own.

    Args:
        limits: limits of a run unless it brings its own.
        workers: most runs at a time; None: one per processor that this process may use.
        bubblewrap: ``auto`` puts the fork server into bubblewrap if that is installed and works, ``always`` insists,
            ``never`` does without.
        unsafe_no_sandbox: run programs even where the machine cannot confine them.
        left_out: protections to do without (``landlock``, ``seccomp``, ``rlimits``); for tests.

    Thread-safe. After a fork of this process and after unpickling, a server of its own is started on first use.

    Raises:
        SandboxUnavailable: the machine lacks what is needed; the message says what.
        ValueError: an argument makes no sense.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        workers: int | None = None,
        *,
        bubblewrap: str = "auto",
        unsafe_no_sandbox: bool = False,
        left_out: tuple[str, ...] = (),
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers!r} must be a whole number >= 1")
        if bubblewrap not in ("auto", "always", "never"):
            raise ValueError(f"bubblewrap={bubblewrap!r} is not one of auto, always, never")
        self.limits = limits or Limits()
        self.workers = workers or available_cores()
        self._options = Options(self.workers, bubblewrap, unsafe_no_sandbox, tuple(left_out))
        self._prepare()
        self._current()

    def _prepare(self) -> None:
        self._lock = threading.Lock()
        self._engine: _Engine | None = None
        self._closed = False

    def _current(self) -> _Engine:
        engine = self._engine
        if engine is not None and engine.process_id != os.getpid():
            # This process is a fork: the lock may be held by a thread that does not exist here.
            self._prepare()
        with self._lock:
            if self._closed:
                raise SandboxUnavailable("the sandbox is closed")
            # A closed engine is one that could not go on; whoever comes now gets a new one.
            if self._engine is None or self._engine.closed:
                self._engine = _Engine(self._options)
                weakref.finalize(self, self._engine.close)
            return self._engine

    def __getstate__(self) -> dict[str, Any]:
        return {"limits": self.limits, "workers": self.workers, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    @property
    def protection(self) -> Protection:
        """What confines the programs on this machine."""
        return self._current().server.protection

    def submit(self, request: Request) -> "Future[Execution]":
        """Queue a request and return its future, which never raises for what a program does."""
        job = Job(request, request.limits or self.limits)
        self._current().submit(job)
        return job.future

    def run(self, program: str, stdin: bytes | str = b"", limits: Limits | None = None) -> Execution:
        """Run a script on its standard input and wait for its end."""
        return self.submit(ProgramRequest(program, stdin, limits)).result()

    def close(self) -> None:
        """End the server and whatever it runs. Waiting requests end as sandbox failures."""
        with self._lock:
            self._closed = True
            engine = self._engine
        if engine is not None:
            engine.close()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def find_protection() -> Protection:
    """Start a server as :class:`~prime_ext.verifiers.sandbox.client.Sandbox` does, and return its protections.

    Raises:
        SandboxUnavailable: the server does not start at all.
    """
    with Sandbox(unsafe_no_sandbox=True) as sandbox:
        return sandbox.protection
