# SPDX-License-Identifier: Apache-2.0
"""Tasks for the pool's tests, in a module of their own that spawned workers can import."""

import os
import signal
import sys
import time
from pathlib import Path

from prime_ext.verifiers.worker_pool import WorkerPool


def double(x):
    return 2 * x


def forever():
    while True:
        pass


def stuck_in_c():
    # One long operation that never returns to Python: no signal handler of Python runs.
    return len(str(9 ** (9**9)))


def hungry():
    return len(bytearray(8 * 1024**3))


def fails():
    raise KeyError("lost")


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_myself_once(marker):
    if not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "second try"


def nap(seconds):
    time.sleep(seconds)
    return os.getpid()


def keep_busy():
    pool = WorkerPool(2, time_limit=60.0)
    workers = {pool.run(nap, 0.05) for _ in range(8)}
    busy = [pool.submit(forever) for _ in range(2)]
    time.sleep(0.5)
    print(*workers, flush=True)
    sys.stdin.readline()
    return busy
