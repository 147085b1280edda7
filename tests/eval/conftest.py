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
"""Makes the helpers importable (pytest's importlib mode leaves sys.path alone); small benchmarks and a run on them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest  # noqa: E402
from small_tasks import run, write_tasks  # noqa: E402


@pytest.fixture(scope="session")
def tasks(tmp_path_factory):
    """Words of a command line that name three small benchmarks."""
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="session")
def folder(tasks):
    """Of their files."""
    return Path(tasks[-1])


@pytest.fixture(scope="module")
def whole(tasks, tmp_path_factory):
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert run(*tasks, "--decoding", "several", "--output", out) == 0
    return out
