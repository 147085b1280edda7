# SPDX-License-Identifier: Apache-2.0
"""One sandbox for all tests of a module."""

from collections.abc import Iterator

import pytest

from prime_ext.verifiers.sandbox import Limits, Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(seconds=60.0, memory_bytes=512 << 20), bubblewrap="never") as running:
        yield running
