# SPDX-License-Identifier: Apache-2.0
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


@pytest.fixture(scope="module")
def whole(tasks, tmp_path_factory):
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert run(*tasks, "--decoding", "several", "--output", out) == 0
    return out
