# SPDX-License-Identifier: Apache-2.0
"""Small benchmarks, a run, and PRMs."""

import pytest
from small_tasks import run, write_tasks
from tiny_llama import save_llama


@pytest.fixture(scope="session")
def tasks(tmp_path_factory):
    """Return words of a command line that name three small benchmarks."""
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def whole(tasks, tmp_path_factory):
    """Make a run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert run(*tasks, "--decoding", "several", "--output", out) == 0
    return out


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Return folders of a PRM, its reference, and a classifier."""
    folder = tmp_path_factory.mktemp("models")
    made = {
        name: save_llama(folder / name, seed)
        for seed, name in enumerate(("prm", "reference"), start=1)
    }
    return made | {"classifier": save_llama(folder / "classifier", 3, classes=2)}
