# SPDX-License-Identifier: Apache-2.0
"""Killable processes for work that may hang, crash or eat memory: algebra, sandboxed programs.

- A task always ends in a value, if only a failure, and affects no other one: every process has a
  pipe and a thread of its own, and shares no lock.
- A task whose process dies from outside (SIGKILL, the kernel's memory killer) is tried once more on
  another one.
- No signals and no forks in the parent, and one thread per process: usable in threads, asyncio and
  Ray actors.
"""

import ctypes
import functools
import logging
import math
import os
import pickle
import pkgutil
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from prime_ext.utils.errors import WorkerDied
from prime_ext.verifiers.verdict import Outcome

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_EXIT_OUT_OF_MEMORY = 77
_START_LIMIT = 120.0  # seconds
# A worker is replaced after these, so that its memory cannot grow for ever.
_TASKS_PER_WORKER = 2000


def count_cores() -> int:
    """Return the number of cores that this process may use, or of all where that is unknown."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """A process that does one task at a time."""

    process: "subprocess.Popen[bytes]"

    def run(self, task: Any) -> Any:
        """Return the value of a task, or raise :class:`WorkerDied`."""
        raise NotImplementedError

    def is_usable(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class _WorkerThreads:
    """Threads of one calling process, each with its worker; they hold no reference to the pool."""

    def __init__(
        self, size: int, start: Callable[[], Worker], failed: Callable[[str], Any]
    ) -> None:
        self.process = os.getpid()
        self.workers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._size = size
        self._start = start
        self._failed = failed
        # Reentrant, because the end of another pool may come while this thread holds it.
        self._lock = threading.RLock()
        self._closed = False
        self._inbox: queue.SimpleQueue[tuple[Any, Future[Any]] | None] = queue.SimpleQueue()
        self._unfinished = 0
        self._threads: list[threading.Thread] = []

    def submit(self, task: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._unfinished += 1
            self._inbox.put((task, future))
            if len(self._threads) < min(self._unfinished, self._size):
                # Processes die with the thread that starts them, so it lives as long as they do.
                self._threads.append(
                    threading.Thread(target=self._serve, name="prime_ext pool", daemon=True)
                )
                self._threads[-1].start()
        return future

    def _serve(self) -> None:
        worker: Worker | None = None
        while (item := self._inbox.get()) is not None:
            task, future = item
            value = None
            awaited = future.set_running_or_notify_cancel()
            for _ in range(2 if awaited else 0):
                try:
                    if worker is not None and not worker.is_usable():
                        worker.end()
                        worker = None
                    worker = worker or self._start_worker()
                    value = worker.run(task)
                    break
                except Exception as error:
                    # The next message of this process might be the answer to this task.
                    if worker is not None:
                        worker.end()
                        worker = None
                    if not isinstance(error, WorkerDied):
                        value = self._failed(str(error) or type(error).__name__)
                        break
                    value = self._failed(f"the process died twice during this run: {error}")
                    if not self._closed:
                        logger.warning("%s; another process is started", error)
            with self._lock:
                self._unfinished -= 1
            if awaited:
                future.set_result(value)
        if worker is not None:
            worker.end()

    def _start_worker(self) -> Worker:
        if self._closed:
            raise RuntimeError("the pool is closed")
        worker = self._start()
        with self._lock:
            self.workers.add(worker)
            if self._closed:
                worker.process.kill()
        return worker

    def close(self) -> None:
        if self.process != os.getpid():
            return  # a forked copy, whose threads do not exist
        with self._lock:
            self._closed = True
            for worker in self.workers:
                worker.process.kill()
        for _ in self._threads:
            self._inbox.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


class Pool:
    """Workers and their tasks, a context manager that starts workers of its own after a fork.

    ``start`` starts a worker and must not refer to the pool; ``failed`` turns the reason of a
    failure into a value.
    """

    def __init__(
        self, workers: int | None, start: Callable[[], Worker], failed: Callable[[str], Any]
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers!r} must be a whole number >= 1")
        self._renew = functools.partial(_WorkerThreads, workers or count_cores(), start, failed)
        self._start_threads()

    def _start_threads(self) -> None:
        self._worker_threads = self._renew()
        weakref.finalize(self, self._worker_threads.close)

    def _put(self, task: Any) -> "Future[Any]":
        if self._worker_threads.process != os.getpid():
            self._start_threads()
        return self._worker_threads.submit(task)

    def close(self) -> None:
        """Kill processes, end threads and fail unfinished tasks; closing twice is allowed."""
        self._worker_threads.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Failure:
    """Failure of a task: ``timeout``, ``error`` or ``out_of_memory``, and one line of detail."""

    outcome: Outcome
    detail: str


_error = functools.partial(Failure, Outcome.ERROR)


def work(descriptor: int, parent: int, memory_limit: int, warm_up: str) -> None:
    """Run a :class:`WorkerPool` interpreter: slow imports first, then tasks until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if warm_up:
        pkgutil.resolve_name(warm_up)()
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pipe = Connection(descriptor)
    answer: Any = b"ready"
    while True:
        pipe.send_bytes(answer)
        try:
            content, time_limit = pipe.recv()
        except (EOFError, OSError):
            return
        # In case the parent is too busy to keep time.
        cpu_limit = math.ceil(time.process_time() + time_limit) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit, resource.RLIM_INFINITY))
        try:
            called, arguments = pickle.loads(content)
            answer = pickle.dumps(called(*arguments))
        except MemoryError:
            # A worker whose memory is full would fail the next tasks too.
            os._exit(_EXIT_OUT_OF_MEMORY)
        except Exception as error:
            answer = pickle.dumps(_error(f"{type(error).__name__}: {error}"))


class _Interpreter(Worker):
    """A new interpreter without the parent's threads and ``__main__``, which loads torch and verl.

    It dies with the parent. Where that is killed and the system is not Linux, a busy one lives
    until its CPU limit.
    """

    def __init__(self, memory_limit: int, warm_up: str) -> None:
        self._pipe, theirs = Pipe()
        self._memory_limit = memory_limit
        self._tasks_left = _TASKS_PER_WORKER
        arguments = theirs.fileno(), os.getpid(), memory_limit, warm_up
        boot = (
            f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import work;"
            f" work(*{arguments!r})"
        )
        with theirs:
            words = [sys.executable, "-c", boot]
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        try:
            started = self._pipe.recv_bytes() if self._pipe.poll(_START_LIMIT) else None
        except EOFError:
            started = None
        if started is None:
            self.end()
            raise WorkerDied(f"it did not start, exit code {self.process.returncode}")

    def run(self, task: tuple[bytes, float]) -> Any:
        _, seconds = task
        self._tasks_left -= 1
        try:
            self._pipe.send(task)
            if self._pipe.poll(seconds):
                return pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            code = self.process.wait()
            if code == _EXIT_OUT_OF_MEMORY:
                return Failure(Outcome.OUT_OF_MEMORY, f"more than {self._memory_limit} bytes")
            if code == -signal.SIGXCPU:
                return Failure(Outcome.TIMEOUT, f"more than {seconds} s of CPU time")
            raise WorkerDied(f"exit code {code}") from None
        self.end()
        return Failure(Outcome.TIMEOUT, f"more than {seconds} s")

    def is_usable(self) -> bool:
        return self._tasks_left > 0 and super().is_usable()

    def end(self) -> None:
        super().end()
        self._pipe.close()


class WorkerPool(Pool):
    """Pool that runs functions in killable interpreters.

    Args:
        workers: most processes; None: one per processor that this process may use.
        time_limit: seconds that a task may run, without its time in the queue.
        memory_limit: address space of one worker, in bytes.
        warm_up: a function without arguments, ``"module:function"``, that a worker calls before its
            first task.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        time_limit: float = 6.0,
        memory_limit: int = 2 * 1024**3,
        warm_up: str = "",
    ) -> None:
        if time_limit <= 0 or memory_limit <= 0:
            raise ValueError(f"must be positive: {time_limit=}, {memory_limit=}")
        self.time_limit = time_limit
        super().__init__(workers, functools.partial(_Interpreter, memory_limit, warm_up), _error)

    def submit(
        self, function: Callable[..., Any], *args: Any, time_limit: float | None = None
    ) -> "Future[Any]":
        """Start ``function(*args)``, which must pickle; the future holds its value or a Failure."""
        try:
            content = pickle.dumps((function, args))
        except Exception as error:
            refused: Future[Any] = Future()
            refused.set_result(_error(f"{type(error).__name__}: {error}"))
            return refused
        return self._put((content, self.time_limit if time_limit is None else time_limit))

    def run(self, function: Callable[..., Any], *args: Any, time_limit: float | None = None) -> Any:
        """Submit as :meth:`submit` does, and wait for the value or :class:`Failure`."""
        return self.submit(function, *args, time_limit=time_limit).result()


# The verifiers of this process share it. It starts with its first task and ends with the process.
DEFAULT_POOL = WorkerPool(warm_up="prime_ext.verifiers.math.evaluation:warm_up")
