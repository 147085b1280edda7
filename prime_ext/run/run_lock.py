# SPDX-License-Identifier: Apache-2.0
"""One run at a time in a folder: two would overwrite one another's checkpoints and metrics."""

import errno
import logging
import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from prime_ext.utils.run_store import RunError

logger = logging.getLogger(__name__)

LOCK = ".prime_ext.lock"
# After a kill, the processes of a run live on for a few seconds; a command that starts it again must not fail by that.
WAIT_SECONDS = 30.0
_POLL_SECONDS = 0.5


class RunLock:
    """Lock on the checkpoint folder of a run. The kernel releases it when the process ends, however it ends."""

    def __init__(self, root: Path):
        self.path = Path(root) / LOCK
        self._lock = FileLock(self.path, thread_local=False, fallback_to_soft=False)

    def acquire(self, wait_seconds: float = WAIT_SECONDS) -> None:
        """Take the lock and note who has it. ``RunError``: another run has not ended within ``wait_seconds``."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                if wait_seconds > 0:
                    logger.warning("%s; waiting up to %.0f s for it to end", self._in_use(), wait_seconds)
                self._lock.acquire(timeout=wait_seconds, poll_interval=_POLL_SECONDS)
        except Timeout:
            raise RunError(f"{self._in_use()}; wait for that run to end, or choose another folder") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
            logger.warning("%s: this file system has no locks; start no second run there", self.path.parent)
        self.path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")

    def release(self) -> None:
        """Let go of it."""
        self._lock.release()

    def _in_use(self) -> str:
        holder = self.path.read_text().strip() or "a process"
        return f"trainer.default_local_dir={self.path.parent} is in use by {holder}"
