# SPDX-License-Identifier: Apache-2.0
"""A pool of worker processes that can be killed: for work that may hang, crash or eat memory, such as computer algebra.

- A task always ends in a value or a :class:`Failure`, never in an exception that somebody forgets to read. Past its
  time limit, which counts from its start in the worker, it is a ``timeout``; past the memory limit ``out_of_memory``;
  if it raises, ``error``. Only that task is affected: a worker has a pipe and a thread of its own, and shares no lock.
- A task whose worker dies from outside (SIGKILL, the kernel's memory killer) is retried once on another worker.
- Workers are new interpreters, so threads in the parent do no harm, and they do not import the parent's ``__main__``,
  which in training would load torch and verl into each of them. They die with the parent, even if that is killed (on
  Linux; elsewhere a busy worker lives until its CPU limit, an idle one ends at once).
- No signals in the parent, and one thread per worker however many tasks wait.
"""

import ctypes
import importlib
import math
import os
import pickle
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from prime_ext.utils.machine import available_cores
from prime_ext.verifiers.verdict import Outcome

_PR_SET_PDEATHSIG = 1
_EXIT_OUT_OF_MEMORY = 77
_START_LIMIT = 120.0  # seconds


@dataclass(frozen=True)
class Failure:
    """Why a task has no value: ``timeout``, ``error`` or ``out_of_memory``, and one line that says more."""

    outcome: Outcome
    detail: str


def work(descriptor: int, parent: int, memory_limit: int, preload: Sequence[str]) -> None:
    """What a worker does: its slow imports, which no task's time limit should pay for, then tasks until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for entry in preload:
        module, _, function = entry.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()
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
            function, arguments = pickle.loads(content)
            answer = pickle.dumps(function(*arguments))
        except MemoryError:
            # A worker whose memory is full would fail the next tasks too.
            os._exit(_EXIT_OUT_OF_MEMORY)
        except Exception as error:
            answer = pickle.dumps(_error(error))


def _error(error: Exception) -> Failure:
    return Failure(Outcome.ERROR, f"{type(error).__name__}: {error}")


class _Died(Exception):
    """A worker has ended; its exit code."""


class _Worker:
    """A process and the parent's end of its pipe."""

    def __init__(self, memory_limit: int, preload: tuple[str, ...]) -> None:
        self._pipe, theirs = Pipe()
        self.tasks = 0
        arguments = theirs.fileno(), os.getpid(), memory_limit, preload
        boot = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import work; work(*{arguments!r})"
        with theirs:
            words = [sys.executable, "-c", boot]
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def answer(self, seconds: float, *questions: Any) -> bytes | None:
        """What it says to the questions. None past the time; it is killed then.

        Raises:
            _Died: it has ended by itself.
        """
        try:
            for question in questions:
                self._pipe.send(question)
            if self._pipe.poll(seconds):
                return self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise _Died(self.process.wait()) from None
        self.end()
        return None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._pipe.close()


class WorkerPool:
    """Runs functions in killable worker processes. Safe to use from any thread, from asyncio and inside Ray actors.

    Args:
        workers: number of processes; by default the CPUs that this process may use.
        time_limit: seconds that a task may run, unless ``submit`` says otherwise. Waiting in the queue is free.
        memory_limit: address space of one worker, in bytes.
        tasks_per_worker: a worker is replaced after so many tasks, so that its memory cannot grow for ever.
        preload: what a worker does before its first task: modules to import, ``"module"``, or functions without
            arguments to call, ``"module:function"``.

    Processes and threads start with the tasks that need them. Close the pool or use it as a context manager.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        time_limit: float = 6.0,
        memory_limit: int = 2 * 1024**3,
        tasks_per_worker: int = 2000,
        preload: Sequence[str] = (),
    ) -> None:
        if workers is None:
            workers = available_cores()
        if workers < 1 or time_limit <= 0 or memory_limit <= 0 or tasks_per_worker < 1:
            raise ValueError(
                "workers, time_limit, memory_limit and tasks_per_worker must be positive, got "
                f"{workers}, {time_limit}, {memory_limit}, {tasks_per_worker}"
            )
        self.workers = workers
        self.time_limit = time_limit
        self._memory_limit = memory_limit
        self._tasks_per_worker = tasks_per_worker
        self._preload = tuple(preload)
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._inbox: queue.SimpleQueue[tuple[bytes, float, Future[Any]] | None] = queue.SimpleQueue()
        self._unfinished = 0
        self._threads: list[threading.Thread] = []
        self._workers: weakref.WeakSet[_Worker] = weakref.WeakSet()

    def submit(self, function: Callable[..., Any], *args: Any, time_limit: float | None = None) -> "Future[Any]":
        """Start ``function(*args)`` in a worker. The future's result is the value or a :class:`Failure`.

        ``function`` must be importable by name and everything must pickle. The future cannot be cancelled.

        Raises:
            RuntimeError: the pool is closed.
        """
        if self._process != os.getpid():
            # A forked copy: threads and workers belong to the parent.
            self._reset()
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        try:
            content = pickle.dumps((function, args))
        except Exception as error:
            future.set_result(_error(error))
            return future
        with self._lock:
            if self._closed:
                raise RuntimeError("the worker pool is closed")
            self._unfinished += 1
            self._inbox.put((content, self.time_limit if time_limit is None else time_limit, future))
            if len(self._threads) < min(self._unfinished, self.workers):
                # A worker dies with the thread that starts it, so it is one that lives as long as the pool.
                self._threads.append(threading.Thread(target=self._serve, name="prime_ext worker pool", daemon=True))
                self._threads[-1].start()
        return future

    def run(self, function: Callable[..., Any], *args: Any, time_limit: float | None = None) -> Any:
        """Like :meth:`submit`, but wait for the value or :class:`Failure`."""
        return self.submit(function, *args, time_limit=time_limit).result()

    def close(self) -> None:
        """Kill the workers and end the threads. Unfinished tasks end as failures. Closing twice is allowed."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.process.kill()
        for _ in self._threads:
            self._inbox.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _serve(self) -> None:
        worker: _Worker | None = None
        while (task := self._inbox.get()) is not None:
            content, time_limit, future = task
            value: Any = None
            for _ in range(2):
                try:
                    worker = self._ready(worker)
                    answer = worker.answer(time_limit, (content, time_limit))
                    late = Failure(Outcome.TIMEOUT, f"more than {time_limit} s")
                    value = late if answer is None else pickle.loads(answer)
                    break
                except _Died as death:
                    value = self._failure(death.args[0], time_limit)
                    if value.outcome is not Outcome.ERROR:
                        break
                except Exception as error:
                    value = _error(error)
            with self._lock:
                self._unfinished -= 1
            future.set_result(value)
        if worker is not None:
            worker.end()

    def _ready(self, worker: _Worker | None) -> _Worker:
        """This worker, or a new one if it has ended or done its share."""
        if worker is not None and (worker.process.poll() is not None or worker.tasks >= self._tasks_per_worker):
            worker.end()
            worker = None
        if worker is None:
            with self._lock:
                if self._closed:
                    raise _Died(None)
                worker = _Worker(self._memory_limit, self._preload)
                self._workers.add(worker)
            if worker.answer(_START_LIMIT) is None:
                raise _Died("none: it did not start")
        worker.tasks += 1
        return worker

    def _failure(self, code: int | None, time_limit: float) -> Failure:
        if self._closed:
            return Failure(Outcome.ERROR, "the worker pool was closed")
        if code == _EXIT_OUT_OF_MEMORY:
            return Failure(Outcome.OUT_OF_MEMORY, f"more than {self._memory_limit} bytes")
        if code == -signal.SIGXCPU:
            return Failure(Outcome.TIMEOUT, f"more than {time_limit} s of CPU time")
        return Failure(Outcome.ERROR, f"the worker died twice, exit code {code}")


# What the verifiers of this process share. It starts with its first task and ends with the process.
DEFAULT_POOL = WorkerPool(preload=("prime_ext.verifiers.math.symbolic:warm_up",))
