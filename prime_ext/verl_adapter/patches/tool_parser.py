# SPDX-License-Identifier: Apache-2.0
"""``verl.experimental.agent_loop.tool_parser``: calls that cannot be read are counted. No defect.

verl logs an error for each. In training they are what the policy unlearns.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from verl.experimental.agent_loop.tool_parser import logger

_messages: ContextVar[list[str] | None] = ContextVar("_messages", default=None)


def _collect(record: logging.LogRecord) -> bool:
    """Filter: collect errors about calls within :func:`count_undecoded`, log all other records."""
    messages = _messages.get()
    text = record.getMessage()
    if messages is None or not text.startswith("Failed to decode"):
        return True
    messages.append(text)
    return False


@contextmanager
def count_undecoded() -> Iterator[list[str]]:
    """Collect verl's errors about calls that it cannot read, of this task, instead of logging."""
    if _collect not in logger.filters:
        logger.addFilter(_collect)
    messages: list[str] = []
    token = _messages.set(messages)
    try:
        yield messages
    finally:
        _messages.reset(token)
