# SPDX-License-Identifier: Apache-2.0
"""tests/canary.sh --stack runs tests with newer packages, and leaves the environment alone."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest

CANARY = Path(__file__).parent / "canary.sh"
# A package of the environment that nothing here imports.
PACKAGE, NEWER = "tabulate", "99.0"


def write_wheel(folder):
    path = folder / f"{PACKAGE}-{NEWER}-py3-none-any.whl"
    info = f"{PACKAGE}-{NEWER}.dist-info"
    with ZipFile(path, "w") as wheel:
        wheel.writestr(f"{PACKAGE}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Name: {PACKAGE}\nVersion: {NEWER}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return str(path)


def run_canary(*words):
    environment = {**os.environ, "PYTHON": sys.executable, "PIP_NO_INDEX": "1"}
    command = ["bash", str(CANARY), "--stack", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(("number", "passes"), [(NEWER, True), (version(PACKAGE), False)])
def test_tests_see_the_newer_package(tmp_path, number, passes):
    wanted = tmp_path / "test_wanted.py"
    wanted.write_text(
        "from importlib.metadata import version\n"
        f"import {PACKAGE}\n"
        "def test_version():\n"
        f"    assert version({PACKAGE!r}) == {number!r}\n"
        f"    assert hasattr({PACKAGE}, 'tabulate') == {not passes}\n"
    )
    done = run_canary(write_wheel(tmp_path), "--", str(wanted))
    assert (done.returncode == 0) == passes, done.stdout + done.stderr
    assert f"{PACKAGE}-{NEWER}.dist-info" in done.stdout
    assert f"1 {'passed' if passes else 'failed'}" in done.stdout
    assert version(PACKAGE) != NEWER


def test_a_stack_without_packages_is_refused():
    done = run_canary("--", "tests/plan")
    assert done.returncode == 2 and "--stack needs packages" in done.stderr
