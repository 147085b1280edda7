# SPDX-License-Identifier: Apache-2.0
"""The interpreter that recipes run with, what they print without one, and their help."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from recipe_calls import RECIPES, get_experiments

from prime_ext import doctor

SCRIPT = f'set -euo pipefail; source "{RECIPES}/python.sh"; echo "$PYTHON"'


@pytest.fixture
def find(tmp_path):
    """Return a function that runs a recipe's choice of Python; only given folders have verl."""

    def find(*folders, script=SCRIPT, **environment):
        for folder in ("system", ".venv", "active"):
            path = tmp_path / folder / "bin" / ("python3" if folder == "system" else "python")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#!/bin/sh\nexit {int(folder not in folders)}\n")
            path.chmod(0o755)
        known = {
            "PATH": f"{tmp_path}/system/bin:/usr/bin:/bin",
            "PROJECT_ROOT": str(tmp_path),
            **environment,
        }
        command = ["bash", "-c", script, "recipes/run.sh"]
        return subprocess.run(command, env=known, capture_output=True, text=True, check=False)

    return find


@pytest.mark.parametrize(
    ("have_verl", "environment", "chosen"),
    [
        # The repository's own; an active one with verl comes first; a named one is taken as it is.
        ([".venv"], {}, ".venv"),
        ([".venv", "active"], {"VIRTUAL_ENV": "active"}, "active"),
        ([".venv"], {"CONDA_PREFIX": "active"}, ".venv"),
        ([".venv"], {"PYTHON": "active/bin/python"}, "active"),
    ],
)
def test_the_first_interpreter_with_verl_runs_a_recipe(
    tmp_path, find, have_verl, environment, chosen
):
    done = find(*have_verl, **{name: f"{tmp_path}/{value}" for name, value in environment.items()})
    assert done.stdout.strip() == f"{tmp_path}/{chosen}/bin/python"


# A Python that lacks verl, as far as make_environment.sh can see, and one that has all.
LACKS = '#!/bin/sh\ncat > /dev/null; printf "%s" "\'verl==0.9.1\' "\n'
HAS_ALL = f'#!/bin/sh\nexec {sys.executable} "$@"\n'


@pytest.mark.parametrize(
    ("linked", "python", "status", "said"),
    [(True, LACKS, 2, "it lacks 'verl==0.9.1'. Install"),
    (False, LACKS, 2, "so nothing is installed there"),
     (True, HAS_ALL, 0, "is used as it is"),
     (False, "#!/bin/sh\nexit 1\n", 2, "it lacks what pyproject.toml lists")],
)  # fmt: skip
def test_an_environment_of_others_is_never_changed(tmp_path, linked, python, status, said):
    made = tmp_path / "theirs" if linked else tmp_path / ".venv"
    venv = tmp_path / ".venv"
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "python").write_text(python)
    (made / "bin" / "python").chmod(0o755)
    if linked:
        # The environment of another checkout, where its script has finished.
        (made / "prime_ext_environment").write_text("1 2\n")
        venv.symlink_to(made)
    (tmp_path / "recipes").mkdir()
    shutil.copy(RECIPES / "make_environment.sh", tmp_path / "recipes")
    shutil.copy(RECIPES.parent / "pyproject.toml", tmp_path)
    files = sorted(path for path in tmp_path.rglob("*"))
    command = ["bash", str(tmp_path / "recipes" / "make_environment.sh")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status and said in done.stdout + done.stderr
    assert sorted(path for path in tmp_path.rglob("*")) == files


def test_without_one_a_line_says_what_to_do(find):
    done = find(PYTHON="/nowhere/python")
    (line,) = done.stderr.splitlines()
    assert (
        done.returncode == 2
        and line.startswith("run.sh: ")
        and "bash recipes/make_environment.sh" in line
    )


def test_packages_of_one_recipe_are_not_installed_for_others(tmp_path, find):
    """The stand-in for Python always exits with 0 (it has the package) or 1 (it has not)."""
    for have, status in (["active"], 0), ([], 2):
        done = find(
            *have,
            PYTHON=f"{tmp_path}/active/bin/python",
            script=f'{SCRIPT}; need gguf "gguf>=0.19"',
        )
        assert done.returncode == status
    assert (
        done.stderr.splitlines()[-1].startswith("run.sh: ")
        and "'pip' 'install' 'gguf>=0.19'" in done.stderr
    )


@pytest.mark.parametrize(
    "script",
    [
        path
        for path in map(str, sorted(path.relative_to(RECIPES) for path in RECIPES.rglob("*.sh")))
        if path != "make_environment.sh"
        and (f"bash recipes/{path}" in (RECIPES / path).read_text() or get_experiments(path))
    ],
)
def test_help_says_how_to_use_it_and_needs_no_python(script):
    environment = {"PATH": os.environ["PATH"], "PYTHON": "/nowhere"}
    command = ["bash", str(RECIPES / script), "-h"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and f"bash recipes/{script}" in done.stdout
    # Neither the license nor the code below.
    assert "Apache" not in done.stdout and "set -euo" not in done.stdout


# Not knobs: what a machine, a scheduler, or another script of a recipe sets.
SET_ELSEWHERE = ("PYTHONPATH", "RAY_", "SLURM_", "VERL_USE_EXTERNAL_MODULES")


@pytest.mark.parametrize(
    "script",
    [
        str(path.relative_to(RECIPES))
        for path in sorted(RECIPES.rglob("*.sh"))
        if re.search(rf"bash \S*{re.escape(path.name)}|^run_experiment ", path.read_text(), re.M)
    ],
)
def test_help_lists_every_knob_of_the_script(script):
    text = (RECIPES / script).read_text()
    knobs = {
        name
        for name in re.findall(r"\$\{([A-Z][A-Z0-9_]*):?-", text)
        if not name.startswith(SET_ELSEWHERE)
    }
    knobs |= {name for each in get_experiments(script) for name in each.get("knobs", ())}
    shown = subprocess.run(
        ["bash", str(RECIPES / script), "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert knobs - set(re.findall(r"\b[A-Z][A-Z0-9_]*\b", shown)) == set()


# The GPU stack without flash-attn, which pip cannot install together with torch.
@pytest.mark.parametrize(
    ("name", "extras", "of_verl"),
    [("cpu", ("cpu", "dev"), ()), ("gpu", ("gpu",), ("verl-core", "vllm", "cupy-cu130"))],
)
def test_a_pinned_environment_satisfies_the_package_and_verl(name, extras, of_verl):
    lines = (RECIPES / f"{name}_environment.txt").read_text().splitlines()[1:]
    pins = {
        canonicalize_name(name): version for name, version in (line.split("==") for line in lines)
    }
    needed = [
        one
        for package, chosen in (("prime_ext", extras), ("verl", of_verl))
        for one in map(Requirement, requires(package))
        if any(one.marker is None or one.marker.evaluate({"extra": x}) for x in (*chosen, ""))
    ]
    assert len(needed) > 20
    for one in needed:
        assert one.specifier.contains(pins[canonicalize_name(one.name)]), one
    if name == "gpu":
        for package, pin in {**doctor.PINS, **doctor.GPU_PINS, "flash-attn": ""}.items():
            known = pins.get(canonicalize_name(package), "0")
            assert SpecifierSet(pin).contains(known), package


def test_all_phases_of_a_quickstart_are_on_the_cpu(find, tmp_path):
    """The report of the agent starts a rollout server; the user has set nothing."""
    script = (
        f'set -euo pipefail; source "{RECIPES}/quickstart/phases.sh"; phase() {{ :; }}; KNOBS=();'
        f' OUT="{tmp_path}/out"; start_run; bash -c \'echo "$VERL_PLATFORM"\''
    )
    done = find(script=script)
    assert done.returncode == 0 and done.stdout == "cpu\n", done.stderr
