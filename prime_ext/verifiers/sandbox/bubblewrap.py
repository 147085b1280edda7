# SPDX-License-Identifier: Apache-2.0
"""Bubblewrap around the fork server: its own file system, network, process table and inter-process communication."""

import os
import shutil
import subprocess
from collections.abc import Sequence

_SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")

_BASE_BYTES = 256 << 20


def find() -> str | None:
    """Return the path of ``bwrap`` if it is installed and works for this user, else None."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    try:
        tried = subprocess.run(
            [*command(path, (), "/tmp/base"), "/usr/bin/env", "true"],
            capture_output=True,
            timeout=10,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return path if tried.returncode == 0 else None


def command(path: str, readable: Sequence[str], base: str) -> list[str]:
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
