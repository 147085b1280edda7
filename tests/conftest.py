# SPDX-License-Identifier: Apache-2.0
"""Settings made before verl is imported: CPU mode, one thread, paths of modules in no wheel."""

import os
import sys
from pathlib import Path

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# As CPU mode does, for the tests that start Ray without verl.
os.environ.setdefault("RAY_worker_niceness", "0")

ROOT = Path(__file__).resolve().parents[1]
# Pytest's importlib mode leaves sys.path alone. `tests` is not a package, because verl installs one
# of that name.
HELPERS = (
    "support algorithms e2e environments eval gpu offline_prm prm reward step_rm trainer verifiers"
    " verifiers/math verifiers/sandbox"
)
for folder in (*(ROOT / "tests" / name for name in HELPERS.split()), ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from kept_compositions import keep_compositions  # noqa: E402

keep_compositions()

# Other work on a small machine makes single examples slow; that is not a failure.
for name, examples in (("quick", 15), ("all", 30)):
    settings.register_profile(
        name,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=True,
    )
# `pytest --hypothesis-profile all` comes after this file.
settings.load_profile("quick")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """Undo what a test writes into the environment by a command that it calls in this process."""
    before = dict(os.environ)
    try:
        return (yield)
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
