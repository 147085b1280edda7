# SPDX-License-Identifier: Apache-2.0
"""Which interpreter recipes run with, what they say without one, and their help."""

import os
import subprocess

import pytest
from recipe_calls import RECIPES

SCRIPT = f'set -euo pipefail; source "{RECIPES}/python.sh"; echo "$PYTHON"'


def interpreter(folder, has_verl=True):
    """A stand-in that says whether it has verl."""
    path = folder / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\nexit {int(not has_verl)}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def find(tmp_path):
    """The choice of a recipe in a folder where python3 has no verl."""
    interpreter(tmp_path / "system", has_verl=False).rename(tmp_path / "system" / "bin" / "python3")

    def find(**environment):
        paths = f"{tmp_path}/system/bin:/usr/bin:/bin"
        return subprocess.run(
            ["bash", "-c", SCRIPT, "recipes/run.sh"], env={"PATH": paths, "PROJECT_ROOT": str(tmp_path), **environment},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    return find


def test_the_repositorys_environment_in_a_new_shell(tmp_path, find):
    own = interpreter(tmp_path / ".venv")
    assert find().stdout.strip() == str(own)


def test_an_active_environment_comes_first_if_it_has_verl(tmp_path, find):
    own, active = interpreter(tmp_path / ".venv"), interpreter(tmp_path / "active")
    interpreter(tmp_path / "without", has_verl=False)
    assert find(VIRTUAL_ENV=str(tmp_path / "active")).stdout.strip() == str(active)
    assert find(CONDA_PREFIX=str(tmp_path / "without")).stdout.strip() == str(own)


def test_python_from_outside_is_taken_as_it_is(tmp_path, find):
    interpreter(tmp_path / ".venv")
    named = interpreter(tmp_path / "named", has_verl=False)
    assert find(PYTHON=str(named)).stdout.strip() == str(named)


@pytest.mark.parametrize("environment", [{}, {"PYTHON": "/nowhere/python"}])
def test_without_one_a_line_says_what_to_do(find, environment):
    done = find(**environment)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("run.sh: no Python with verl here: run bash recipes/make_environment.sh (CPU), or activate")


@pytest.mark.parametrize(
    "script",
    [
        path
        for path in map(str, sorted(path.relative_to(RECIPES) for path in RECIPES.rglob("*.sh")))
        if f"bash recipes/{path}" in (RECIPES / path).read_text() and path != "make_environment.sh"
    ],
)
def test_help_says_how_to_use_it_and_needs_no_python(script):
    environment = {"PATH": os.environ["PATH"], "PYTHON": "/nowhere"}
    command = ["bash", str(RECIPES / script), "-h"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and f"bash recipes/{script}" in done.stdout
    # Neither the licence nor the code below.
    assert "Apache" not in done.stdout and "set -euo" not in done.stdout
