# SPDX-License-Identifier: Apache-2.0
"""Errors that several packages raise."""


class WorkerDied(RuntimeError):
    """A worker process died for a reason unrelated to its task; the message is one line."""
