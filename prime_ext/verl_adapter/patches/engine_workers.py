# SPDX-License-Identifier: Apache-2.0
"""``verl.workers.engine_workers``: a context around each update of verl's worker. No defect."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def apply(worker: Any, around: Callable[[Any], AbstractContextManager[None]]) -> None:
    """Run a worker's ``train_mini_batch`` within ``around``, which may add options to the data."""
    train = worker.train_mini_batch

    def train_mini_batch(data: Any) -> Any:
        with around(data):
            return train(data=data)

    worker.train_mini_batch = train_mini_batch
