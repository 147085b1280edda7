# SPDX-License-Identifier: Apache-2.0
"""What the workers of the pool's tests do: in a module of its own, which spawned workers can import."""

import os
import signal
import time
from pathlib import Path


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
