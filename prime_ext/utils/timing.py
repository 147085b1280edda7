# SPDX-License-Identifier: Apache-2.0
"""Seconds of the parts of a step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def add_seconds(name: str, seconds: dict[str, float]) -> Iterator[None]:
    """Add the time of the block to ``seconds[name]``, also where an error ends it."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
