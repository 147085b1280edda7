# SPDX-License-Identifier: Apache-2.0
"""One pool of workers for all tests of mathematics."""

import pytest

from prime_ext.verifiers.math import MathVerifier
from prime_ext.verifiers.worker_pool import WorkerPool


@pytest.fixture(scope="session")
def pool():
    with WorkerPool(
        2, time_limit=20.0, warm_up="prime_ext.verifiers.math.evaluation:warm_up"
    ) as shared:
        yield shared


@pytest.fixture(scope="session")
def verifier(pool):
    return MathVerifier(pool)
