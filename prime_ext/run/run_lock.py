# SPDX-License-Identifier: Apache-2.0
"""One run at a time in a folder: two would overwrite one another's checkpoints and metrics."""

import errno
import fcntl
import logging
import os
import socket
import time
from pathlib import Path
from typing import TextIO

logger = logging.getLogger(__name__)

LOCK = ".prime_ext.lock"
# After a kill, the processes of a run live on for a few seconds; a command that starts it again must not fail by that.
WAIT_SECONDS = 30.0
_POLL_SECONDS = 0.5


class RunFolderInUse(RuntimeError):
    """Another run works in the folder; the message is one line."""


class RunLock:
    """Lock on the checkpoint folder of a run. The kernel lets go of it when the process ends, however it ends.

    Args:
        root: ``trainer.default_local_dir``.
    """

    def __init__(self, root: Path):
        self.path = Path(root) / LOCK
        self._stream: TextIO | None = None

    def acquire(self, wait_seconds: float = WAIT_SECONDS) -> None:
        """Take the lock and keep it.

        Args:
            wait_seconds: how long to wait for another run to end.

        Raises:
            RunFolderInUse: it has not ended by then.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        stream = self.path.open("a+")
        deadline, told = time.monotonic() + wait_seconds, False
        while not self._taken(stream):
            stream.seek(0)
            in_use = f"trainer.default_local_dir={self.path.parent} is in use by {stream.read().strip() or 'a process'}"
            if time.monotonic() >= deadline:
                stream.close()
                raise RunFolderInUse(f"{in_use}; wait for that run to end, or choose another folder")
            if not told:
                logger.warning("%s; waiting up to %.0f s for it to end", in_use, wait_seconds)
                told = True
            time.sleep(_POLL_SECONDS)
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        stream.flush()
        self._stream = stream

    def release(self) -> None:
        """Let go of it."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _taken(self, stream: TextIO) -> bool:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                logger.warning("%s: this file system has no locks; start no second run there", self.path.parent)
                return True
            raise
        return True
