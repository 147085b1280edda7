# SPDX-License-Identifier: Apache-2.0
"""Which interpreter recipes run with, what they say without one, and their help."""

import os
import subprocess

import pytest
from recipe_calls import RECIPES

SCRIPT = f'set -euo pipefail; source "{RECIPES}/python.sh"; echo "$PYTHON"'


@pytest.fixture
def find(tmp_path):
    """The choice of a recipe where only the interpreters in some folders have verl; python3 has not."""

    def find(*folders, **environment):
        for folder in ("system", ".venv", "active"):
            path = tmp_path / folder / "bin" / ("python3" if folder == "system" else "python")
            path.parent.mkdir(parents=True)
            path.write_text(f"#!/bin/sh\nexit {int(folder not in folders)}\n")
            path.chmod(0o755)
        known = {"PATH": f"{tmp_path}/system/bin:/usr/bin:/bin", "PROJECT_ROOT": str(tmp_path), **environment}
        command = ["bash", "-c", SCRIPT, "recipes/run.sh"]
        return subprocess.run(command, env=known, capture_output=True, text=True, check=False)

    return find


@pytest.mark.parametrize(
    ("have_verl", "environment", "chosen"),
    [
        # The repository's own; an active one comes first if it has verl; what is named is taken as it is.
        ([".venv"], {}, ".venv"),
        ([".venv", "active"], {"VIRTUAL_ENV": "active"}, "active"),
        ([".venv"], {"CONDA_PREFIX": "active"}, ".venv"),
        ([".venv"], {"PYTHON": "active/bin/python"}, "active"),
    ],
)
def test_the_first_interpreter_with_verl_runs_a_recipe(tmp_path, find, have_verl, environment, chosen):
    done = find(*have_verl, **{name: f"{tmp_path}/{value}" for name, value in environment.items()})
    assert done.stdout.strip() == f"{tmp_path}/{chosen}/bin/python"


def test_without_one_a_line_says_what_to_do(find):
    done = find(PYTHON="/nowhere/python")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("run.sh: ") and "bash recipes/make_environment.sh" in line


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
