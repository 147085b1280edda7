# SPDX-License-Identifier: Apache-2.0
"""A look at what is left in the process table."""

import os
import time
from pathlib import Path


def processes_of(marker: str) -> list[int]:
    """Return the processes whose command line holds the text: a server and its children name the server's directory."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                line = Path("/proc", entry, "cmdline").read_bytes()
                state = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if marker.encode() in line and state != "Z":
                found.append(int(entry))
    return found


def wait_until(condition, seconds: float = 600.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
