# SPDX-License-Identifier: Apache-2.0
"""The wheel: everything is in it, and it works from another folder without the repository."""

import ast
import json
import os
import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from prime_ext.__main__ import COMMANDS, FOLDERS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    # A copy: setuptools builds in the folder of the sources.
    source.mkdir()
    words = ["git", "ls-files", "-co", "--exclude-standard", "prime_ext", *FOLDERS.values()]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    for name in ["pyproject.toml", "setup.py", "README.md", "LICENSE", *listed.stdout.split()]:
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    words = [
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(source),
    ]
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    return next(folder.glob("prime_ext-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    target = tmp_path_factory.mktemp("installed")
    words = [
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
        str(wheel),
    ]
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    return target


def run(installed, folder, *words):
    environment = {**os.environ, "PYTHONPATH": str(installed), "VERL_PLATFORM": "cpu"}
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def test_every_module_and_every_setting_is_in_it(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    folders = {"prime_ext": "prime_ext", **FOLDERS}
    for package, folder in folders.items():
        files = [
            file for kind in ("py", "yaml", "csv") for file in (ROOT / folder).rglob(f"*.{kind}")
        ]
        inside = (file.relative_to(ROOT / folder) for file in files)
        assert {f"{package.replace('.', '/')}/{file}" for file in inside} - names == set()
    assert "prime_ext/py.typed" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"prime_ext"}


def required_by(name, extras, found):
    """Return the names of all packages that are installed with this one."""
    for one in map(Requirement, requires(name) or []):
        key = (canonicalize_name(one.name), frozenset(one.extras))
        marker = one.marker
        if key not in found and any(
            marker is None or marker.evaluate({"extra": extra}) for extra in ("", *extras)
        ):
            found.add(key)
            required_by(*key, found)
    return {name for name, _ in found}


def test_it_requires_all_that_its_modules_import():
    folders = ("prime_ext", *FOLDERS.values())
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    statements = [line for path in files for line in ast.parse(path.read_text()).body]
    names = [
        *(a.name for line in statements if isinstance(line, ast.Import) for a in line.names),
        *(
            line.module
            for line in statements
            if isinstance(line, ast.ImportFrom) and not line.level
        ),
    ]
    modules = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"prime_ext"}
    brings = required_by("prime-ext", ["cpu"], set())
    packages = packages_distributions()
    assert [
        one for one in modules if not {canonicalize_name(name) for name in packages[one]} & brings
    ] == []


@pytest.mark.slow
def test_the_installed_wheel_runs_and_verl_finds_its_plug_in(installed, tmp_path):
    script = """
from importlib.metadata import entry_points
import prime_ext
points = entry_points(group="verl.plugins")
(plugin,) = [point for point in points if str(point.dist.locate_file("")) == INSTALLED]
plugin.load()
from verl.trainer.ppo.v1 import trainer_base
from prime_ext.config.compose import compose_config
print(prime_ext.__file__, compose_config("prime_trainer_cpu", []).prm.loss)
"""
    done = run(installed, tmp_path, "-c", f"INSTALLED = {str(installed)!r}\n{script}")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-2].startswith(str(installed))


@pytest.mark.slow
def test_every_command_has_help_and_others_are_named(installed, tmp_path):
    for command in COMMANDS:
        done = run(installed, tmp_path, "-m", "prime_ext", *command.split(), "--help")
        assert done.returncode == 0 and len(done.stdout.splitlines()) > 3, done.stderr[-2000:]
    done = run(installed, tmp_path, "-m", "prime_ext", "trian")
    assert done.returncode == 1 and "trian is not a command; they are train, " in done.stderr


def test_the_wheel_grades_answers_and_makes_rows_without_the_repository(installed, tmp_path):
    rows = [
        {"gold": "2", "answer": "2"},
        {"gold": "1/2", "answer": "0.5"},
        {"gold": "3", "answer": "4"},
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--input", "answers.jsonl", "--data-source", "math500"]
    done = run(installed, tmp_path, "-m", "prime_ext", "eval-grade", *words)
    assert done.returncode == 0, done.stderr[-2000:]
    graded = (tmp_path / "answers.graded.jsonl").read_text().splitlines()
    assert [json.loads(line)["verdict"] for line in graded] == ["correct", "correct", "wrong"]
    (tmp_path / "in.jsonl").write_text('{"problem": "What is 1 + 1?", "answer": "2"}\n')
    words = ["math", "--input", "own=in.jsonl", "--source", "mine", "--output-dir", "out"]
    words.append("stages.decontaminate=null")
    done = run(installed, tmp_path, "-m", "prime_ext", "data", "pipeline", *words)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "out" / "train.parquet").is_file()


def test_a_checkout_runs_the_folders_of_the_repository(tmp_path):
    for command in ("eval-report", "data selection"):
        done = run(ROOT, tmp_path, "-m", "prime_ext", *command.split(), "--help")
        assert done.stdout.startswith(f"usage: prime-ext {command} "), done.stderr[-2000:]
    done = run(ROOT, tmp_path, "-m", "prime_ext", "data")
    assert done.returncode == 2 and "data pipeline" in done.stdout and "train" not in done.stdout
