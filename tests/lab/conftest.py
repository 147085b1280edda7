# SPDX-License-Identifier: Apache-2.0
"""A task and a warm start that take seconds."""

import pytest
import torch
import transformers

from recipes.lab.tasks import CompactChain

TINY = CompactChain(longest=3, shortest=2, n_values=5, n_operations=3)


@pytest.fixture(scope="session")
def task():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    return TINY


@pytest.fixture(scope="session")
def start(task, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab") / "start"
    task.warm_start(folder, steps=120, batch_size=32)
    return folder
