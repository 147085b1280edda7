# SPDX-License-Identifier: Apache-2.0
"""Copies of an engine in processes of their own that share the work; a process that dies takes only its own with it.

Work is handed out as the processes get on, so that none is idle while another has a queue. A process that loses its
parent ends by itself.
"""

import atexit
import contextlib
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from prime_ext.generate.backend import BackendError
from prime_ext.generate.http_retry import one_line

_SECONDS_TO_END = 20.0
# How often a process is looked for that ended without its end of the pipe being closed: its own children may hold it.
_SECONDS_TO_LOOK = 2.0


class Engine(Protocol):
    """What a process runs."""

    def add(self, number: int, job: Any) -> None:
        """Begin a job. A ValueError means that this one cannot be done."""
        ...

    def abort(self, numbers: Sequence[int]) -> None:
        """Forget jobs."""
        ...

    def has_work(self) -> bool: ...

    def step(self) -> list[tuple[int, Any]]:
        """Go on with all jobs; those that are done now, with their results."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Failed:
    """Instead of a result: why there is none, in one line."""

    reason: str


def _receive(connection: Connection, inbox: "queue.SimpleQueue[Any]") -> None:
    # Read at once, so that the parent never waits to write while this process waits to be read.
    with contextlib.suppress(EOFError, OSError):
        while True:
            inbox.put(connection.recv())
    inbox.put(("close",))


def _serve(
    connection: Connection, factory: Callable[[Any], Engine], argument: Any, environment: Mapping[str, str]
) -> None:
    """The main function of a process."""
    os.environ.update(environment)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone
        try:
            engine = factory(argument)
            connection.send(("ready",))
            _loop(engine, connection, inbox)
            engine.close()
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            connection.send(("broken", one_line(f"{type(error).__name__}: {error}")))
            raise


def _loop(engine: Engine, connection: Connection, inbox: "queue.SimpleQueue[Any]") -> None:
    while True:
        while not engine.has_work() or not inbox.empty():
            message = inbox.get()
            if message[0] == "close":
                return
            if message[0] == "abort":
                engine.abort(message[1])
                continue
            _, number, job = message
            try:
                engine.add(number, job)
            except ValueError as error:
                connection.send(("done", number, Failed(one_line(str(error)))))
        for number, result in engine.step():
            connection.send(("done", number, result))


class _Worker:
    """A process as its parent sees it."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self.connection, other = context.Pipe()
        # No daemon: those may have no processes of their own, which tensor parallelism needs.
        self.process = context.Process(target=_serve, args=(other, *arguments), name=name)
        self.process.start()
        other.close()
        self.reason = ""
        self.alive = True
        self.jobs: set[int] = set()

    def send(self, message: tuple[Any, ...]) -> None:
        # That it is gone shows when it is read from.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def receive(self) -> tuple[Any, ...] | None:
        """The next message; None if the process has ended."""
        try:
            message: tuple[Any, ...] = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.note_end()
            return None
        if message[0] == "broken":
            self.reason = message[1]
            return self.receive()
        return message

    def note_end(self) -> None:
        """The process has ended; say how."""
        self.process.join()
        self.alive = False
        code = self.process.exitcode or 0
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        self.reason = f"{self.name} {ended}" + (f": {self.reason}" if self.reason else "")


class EngineProcesses:
    """Starts processes and waits until all are ready.

    Args:
        factory: makes an engine in a process; importable by name.
        arguments: of the factory, one per process.
        environments: environment variables, one mapping per process.
        in_flight: jobs that a process has at a time.

    Raises:
        BackendError: a process ended before it was ready.
    """

    def __init__(
        self,
        factory: Callable[[Any], Engine],
        arguments: Sequence[Any],
        environments: Sequence[Mapping[str, str]],
        in_flight: int,
    ) -> None:
        self._in_flight = in_flight
        self._next_number = 0
        self._workers: list[_Worker] = []
        # Otherwise the interpreter waits for the processes when it ends, and they for work.
        atexit.register(self.close)
        for place, (argument, environment) in enumerate(zip(arguments, environments, strict=True), start=1):
            name = f"engine process {place} of {len(arguments)}"
            self._workers.append(_Worker(name, (factory, argument, dict(environment))))
        for worker in self._workers:
            if worker.receive() is None:
                self.close()
                raise BackendError(f"{worker.reason} while it started")

    @property
    def process_ids(self) -> list[int]:
        """Of the processes that run."""
        return [int(worker.process.pid or 0) for worker in self._workers if worker.alive]

    def run(self, jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Do all jobs; yields their places in ``jobs`` with results, or :class:`Failed`, as they are done."""
        first = self._next_number
        self._next_number += len(jobs)
        waiting = iter(range(len(jobs)))
        try:
            while True:
                for worker in self._workers:
                    self._fill(worker, waiting, jobs, first)
                busy = {worker.connection: worker for worker in self._workers if worker.alive and worker.jobs}
                if not busy:
                    break
                ready = wait(list(busy), _SECONDS_TO_LOOK)
                for connection, worker in busy.items():
                    if connection in ready:
                        yield from self._read(worker, first)
                    elif not worker.process.is_alive() and not connection.poll():
                        worker.note_end()
                        yield from self._lost(worker, first)
            reasons = "; ".join(worker.reason for worker in self._workers if not worker.alive)
            for place in waiting:
                yield place, Failed(f"no engine process is left: {reasons}")
        finally:
            for worker in self._workers:
                if worker.alive and worker.jobs:
                    worker.send(("abort", sorted(worker.jobs)))
                worker.jobs.clear()

    def _fill(self, worker: _Worker, waiting: Iterator[int], jobs: Sequence[Any], first: int) -> None:
        while worker.alive and len(worker.jobs) < self._in_flight:
            place = next(waiting, None)
            if place is None:
                return
            worker.jobs.add(first + place)
            worker.send(("job", first + place, jobs[place]))

    def _read(self, worker: _Worker, first: int) -> Iterator[tuple[int, Any]]:
        message = worker.receive()
        if message is None:
            yield from self._lost(worker, first)
        elif message[1] in worker.jobs:  # others belong to a run that was given up
            worker.jobs.remove(message[1])
            yield message[1] - first, message[2]

    def _lost(self, worker: _Worker, first: int) -> Iterator[tuple[int, Any]]:
        lost = sorted(worker.jobs)
        worker.jobs.clear()
        for number in lost:
            yield number - first, Failed(worker.reason)

    def close(self) -> None:
        """End the processes; a second call changes nothing."""
        for worker in self._workers:
            worker.send(("close",))
        for worker in self._workers:
            worker.process.join(_SECONDS_TO_END)
            if worker.process.is_alive():
                worker.process.terminate()
                worker.process.join(_SECONDS_TO_END)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()
        self._workers.clear()
        atexit.unregister(self.close)
