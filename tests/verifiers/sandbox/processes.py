# SPDX-License-Identifier: Apache-2.0
"""A look at what is left in the process table."""

import os
import time
from pathlib import Path


def get_server(sandbox):
    """Return the fork server of a sandbox with one worker, None while it has none."""
    return next((server for server in sandbox._worker_threads.workers if server.is_usable()), None)


def alive(process: int) -> bool:
    """Return whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def get_processes(marker: str) -> list[int]:
    """Return processes whose command line has the text; a server's children share its directory."""
    processes = []
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if marker.encode() in Path(f"/proc/{process}/cmdline").read_bytes() and alive(process):
                processes.append(process)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return processes


def wait_until(condition, seconds: float = 600.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
