# SPDX-License-Identifier: Apache-2.0
"""``verl.workers.engine_workers``: something around each update of a worker that verl builds
itself. No defect."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def apply(worker: Any, around: Callable[[Any], AbstractContextManager[None]]) -> None:
    """Have ``train_mini_batch`` of this worker run within ``around``, which may also add options to
    the data."""
    train = worker.train_mini_batch

    def train_mini_batch(data: Any) -> Any:
        with around(data):
            return train(data=data)

    worker.train_mini_batch = train_mini_batch
