# SPDX-License-Identifier: Apache-2.0
"""A pool of worker processes that can be killed: for work that may hang, crash or eat memory, such as computer algebra.

pebble's ``ProcessPool`` does the work; this module adds what graders need on top:

- A task always ends in a value or a :class:`Failure`, never in an exception that somebody forgets to read. Past its
  time limit, which counts from its start in the worker, it is a ``timeout``; past the memory limit ``out_of_memory``;
  if it raises, ``error``. Only that task is affected.
- A task whose worker dies from outside (SIGKILL, the kernel's memory killer) is retried once on another worker.
- A pool that cannot go on (pebble gives up when an idle worker is killed; a worker killed within a message can block
  the others for good) is replaced, and the unfinished tasks are started again.
- Workers are spawned, not forked, so threads in the parent do no harm, and they do not import the parent's
  ``__main__``, which in training would load torch and verl into each of them. They die with the parent, even if that is
  killed (on Linux; elsewhere a busy worker lives until its CPU limit, an idle one ends at once).
- No signals in the parent, and four threads however many tasks wait.
"""

import ctypes
import importlib
import math
import os
import queue
import resource
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import popen_spawn_posix, spawn
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from pebble import ProcessExpired, ProcessPool

from prime_ext.utils.machine import available_cores
from prime_ext.verifiers.verdict import Outcome

_PR_SET_PDEATHSIG = 1
_EXIT_OUT_OF_MEMORY = 77
_POOL_RESTARTS_PER_TASK = 2
_START_LIMIT = 120.0  # seconds without any progress, beyond the time limits, before the pool counts as stuck


@dataclass(frozen=True)
class Failure:
    """Why a task has no value: ``timeout``, ``error`` or ``out_of_memory``, and one line that says more."""

    outcome: Outcome
    detail: str


class _SpawnWithoutMain:
    """``multiprocessing.spawn`` as a ``Popen`` sees it, minus the order to import the parent's ``__main__``."""

    get_command_line = staticmethod(spawn.get_command_line)
    get_executable = staticmethod(spawn.get_executable)

    @staticmethod
    def get_preparation_data(name: str) -> dict[str, Any]:
        data = spawn.get_preparation_data(name)
        return {key: value for key, value in data.items() if not key.startswith("init_main")}


class _Popen(popen_spawn_posix.Popen):
    # The standard library's own code, seeing another `spawn`: patching that module would change other pools as well.
    _launch = types.FunctionType(
        popen_spawn_posix.Popen._launch.__code__,  # type: ignore[attr-defined]
        {**vars(popen_spawn_posix), "spawn": _SpawnWithoutMain},
    )


class _WorkerProcess(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:
        return _Popen(process_obj)


class _WorkerContext(SpawnContext):
    Process = _WorkerProcess  # type: ignore[assignment]


def _start_worker(parent: int, memory_limit: int, preload: tuple[str, ...]) -> None:
    """Prepare a worker: how it dies, what it may use, and the slow imports that no task's time limit should pay for."""
    # pebble's own handler runs in Python and so never while a C function, say a huge power, has the interpreter.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
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


def _run_task(function: Callable[..., Any], args: tuple[Any, ...], time_limit: float) -> Any:
    """Run one task in the worker under a CPU limit of its own, in case the parent is too busy to keep time."""
    cpu_limit = math.ceil(time.process_time() + time_limit) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit, resource.RLIM_INFINITY))
    try:
        return function(*args)
    except MemoryError:
        # A worker whose memory is full would fail the next tasks too.
        os._exit(_EXIT_OUT_OF_MEMORY)


@dataclass(eq=False)
class _Task:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    time_limit: float
    future: "Future[Any]" = field(default_factory=Future)
    deaths: int = 0
    restarts: int = 0
    generation: int = 0


class WorkerPool:
    """Runs functions in killable worker processes. Safe to use from any thread, from asyncio and inside Ray actors.

    Args:
        workers: number of processes; by default the CPUs that this process may use.
        time_limit: seconds that a task may run, unless ``submit`` says otherwise. Waiting in the queue is free.
        memory_limit: address space of one worker, in bytes.
        tasks_per_worker: a worker is replaced after so many tasks, so that its memory cannot grow for ever.
        preload: what a worker does before its first task: modules to import, ``"module"``, or functions without
            arguments to call, ``"module:function"``.

    Processes and threads start with the first task. Close the pool or use it as a context manager.
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
        self._inbox: queue.SimpleQueue[tuple[str, Any, Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # Only the pool's own thread touches what follows.
        self._pool: ProcessPool | None = None
        self._generation = 0
        self._unfinished: set[_Task] = set()
        self._progress = time.monotonic()

    def submit(self, function: Callable[..., Any], *args: Any, time_limit: float | None = None) -> "Future[Any]":
        """Start ``function(*args)`` in a worker. The future's result is the value or a :class:`Failure`.

        ``function`` must be importable by name and everything must pickle. The future cannot be cancelled.

        Raises:
            RuntimeError: the pool is closed.
        """
        if self._process != os.getpid():
            # A forked copy: threads and workers belong to the parent.
            self._reset()
        task = _Task(function, args, self.time_limit if time_limit is None else time_limit)
        task.future.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                raise RuntimeError("the worker pool is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="prime_ext worker pool", daemon=True)
                self._thread.start()
            self._inbox.put(("task", task, None))
        return task.future

    def run(self, function: Callable[..., Any], *args: Any, time_limit: float | None = None) -> Any:
        """Like :meth:`submit`, but wait for the value or :class:`Failure`."""
        return self.submit(function, *args, time_limit=time_limit).result()

    def close(self) -> None:
        """Kill the workers and end the threads. Unfinished tasks end as failures. Closing twice is allowed."""
        with self._lock:
            self._closed = True
            thread = self._thread
            if thread is not None and self._process == os.getpid():
                self._inbox.put(("close", None, None))
        if thread is not None and self._process == os.getpid():
            thread.join()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Everything below runs in the pool's own thread. Workers are killed when the thread that started them ends, so it
    # is this one, which lives as long as the pool, that starts pebble.

    def _serve(self) -> None:
        while True:
            try:
                kind, task, result = self._inbox.get(timeout=1.0)
            except queue.Empty:
                self._replace_stuck_pool()
                continue
            if kind == "close":
                break
            if kind == "task":
                if not self._unfinished:
                    self._progress = time.monotonic()
                self._unfinished.add(task)
                self._schedule(task)
            elif task in self._unfinished and result[0] == task.generation:
                self._progress = time.monotonic()
                self._settle(task, result[1])
        self._stop()
        for task in list(self._unfinished):
            self._finish(task, Failure(Outcome.ERROR, "the worker pool was closed"))

    def _schedule(self, task: _Task) -> None:
        if self._pool is None:
            self._pool = ProcessPool(
                max_workers=self.workers,
                max_tasks=self._tasks_per_worker,
                initializer=_start_worker,
                initargs=(os.getpid(), self._memory_limit, self._preload),
                context=_WorkerContext(),
            )
        generation = task.generation = self._generation
        try:
            attempt = self._pool.schedule(
                _run_task, args=(task.function, task.args, task.time_limit), timeout=task.time_limit
            )
        except RuntimeError as error:
            self._restart(str(error))
            return
        attempt.add_done_callback(lambda done: self._inbox.put(("done", task, (generation, done))))

    def _settle(self, task: _Task, attempt: "Future[Any]") -> None:
        try:
            self._finish(task, attempt.result())
        except ProcessExpired as death:
            if death.exitcode == _EXIT_OUT_OF_MEMORY:
                self._finish(task, Failure(Outcome.OUT_OF_MEMORY, f"more than {self._memory_limit} bytes"))
            elif death.exitcode == -signal.SIGXCPU:
                self._finish(task, Failure(Outcome.TIMEOUT, f"more than {task.time_limit} s of CPU time"))
            elif task.deaths == 0:
                task.deaths += 1
                self._schedule(task)
            else:
                self._finish(task, Failure(Outcome.ERROR, f"the worker died twice, exit code {death.exitcode}"))
        except (FutureTimeoutError, CancelledError):
            self._finish(task, Failure(Outcome.TIMEOUT, f"more than {task.time_limit} s"))
        except BrokenProcessPool as error:
            self._restart(str(error))
        except Exception as error:
            self._finish(task, Failure(Outcome.ERROR, f"{type(error).__name__}: {error}"))

    def _finish(self, task: _Task, value: Any) -> None:
        self._unfinished.discard(task)
        task.future.set_result(value)

    def _replace_stuck_pool(self) -> None:
        if self._pool is None or not self._unfinished:
            return
        longest = max(task.time_limit for task in self._unfinished)
        if not self._pool.active:
            # pebble gave up, and a task that came in that moment is on no list of those that it then failed.
            self._restart("pebble gave up")
        elif time.monotonic() - self._progress > 2 * longest + _START_LIMIT:
            self._restart("no worker answers")

    def _restart(self, reason: str) -> None:
        """Start the unfinished tasks again on a new pool, except those for which that was in vain before."""
        self._stop()
        self._generation += 1
        self._progress = time.monotonic()
        for task in list(self._unfinished):
            task.restarts += 1
            if task.restarts > _POOL_RESTARTS_PER_TASK:
                self._finish(task, Failure(Outcome.ERROR, f"the worker pool failed {task.restarts} times: {reason}"))
            elif task.generation < self._generation:
                self._schedule(task)

    def _stop(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.stop()
            pool.join()


# What the verifiers of this process share. It starts with its first task and ends with the process.
DEFAULT_POOL = WorkerPool(preload=("prime_ext.verifiers.math.symbolic:warm_up",))
