# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
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
