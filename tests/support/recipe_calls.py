# SPDX-License-Identifier: Apache-2.0
"""Calls of a recipe, whose script runs with an interpreter that only records its arguments."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import yaml
from forked_workers import python, with_forks
from hydra import compose, initialize_config_dir
from logged_runs import run_logged
from omegaconf import OmegaConf

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
# A line of a stand-in for Python: the launcher itself runs.
LAUNCHES = f'[[ "$2" != recipes.launch ]] || exec "{sys.executable}" "$@"'


def get_calls(folder, script, *words, **knobs):
    """Return the calls of the interpreter by a script below ``recipes``, as lists of words.

    ``folder`` is for the interpreter, its notes and the output of the script; ``knobs`` are
    environment variables.
    """
    calls = folder / "calls"
    stub = folder / "python"
    stub.write_text(
        f"#!/usr/bin/env bash\n{LAUNCHES}\n"
        f'printf "%s\\0" "$@" >> {calls}\nprintf "\\n\\0" >> {calls}\n'
    )
    stub.chmod(0o755)
    calls.unlink(missing_ok=True)
    environment = {**os.environ, "OUTPUT_DIR": str(folder / "out"), **knobs, "PYTHON": str(stub)}
    command = ["bash", str(RECIPES / script), *map(str, words)]
    subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [call.split("\0")[:-1] for call in calls.read_text().split("\n\0")[:-1]]


def run_shrunk(folder, script, *words):
    """Run a script shrunk, to its end; return the run's folder, next to its output ``log.txt``."""
    environment = with_forks(
        os.environ | {"SHRINK": "1", "PYTHON": python(), "OUTPUT_DIR": str(folder)}
    )
    run_logged(folder / "log.txt", ["bash", RECIPES / script, *words], environment)
    return folder / "shrunk"


def compose_sft(overrides):
    """Compose the configuration of verl's SFT trainer."""
    folder = Path(find_spec("verl").origin).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("sft_trainer_engine", overrides=overrides)
    OmegaConf.resolve(config)
    return config


def get_overrides(call, module):
    """Return overrides of a call of a module, and the name of its primary configuration."""
    words = call[call.index(module) + 1 :]
    names = [
        word.removeprefix("--config-name=") for word in words if word.startswith("--config-name=")
    ]
    return [word for word in words if not word.startswith("--")], names[0] if names else None


def get_name(recipe):
    """Return the name of the test of a row of a ``paper.yaml``."""
    return " ".join(
        [recipe["script"], *(f"{key}={value}" for key, value in recipe.get("knobs", {}).items())]
    )


def get_wanted(paper, recipe):
    """Return the values of a row: those of its parts, and its own."""
    return {
        key: value for part in recipe["parts"] for key, value in paper[part].items()
    } | recipe.get("values", {})


def differences(config, wanted):
    """Return what the configuration has in place of what is wanted."""
    selected = {key: OmegaConf.select(config, key, throw_on_missing=True) for key in wanted}
    plain = {
        key: OmegaConf.to_object(value) if OmegaConf.is_config(value) else value
        for key, value in selected.items()
    }
    return {key: value for key, value in plain.items() if value != wanted[key]}


def get_experiments(script):
    """Return the experiment that a script below ``recipes`` starts, and its bases; or none."""
    names = re.findall(r"^run_experiment (\S+)", (RECIPES / script).read_text(), re.MULTILINE)
    files = [RECIPES / name for name in names]
    experiments = []
    for file in files:
        experiments.append(yaml.load(file.read_text(), yaml.BaseLoader))
        if "base" in experiments[-1]:
            files.append(file.parent / experiments[-1]["base"])
    return experiments


def get_variants(script):
    """Return the values of VARIANT that a script below ``recipes`` knows."""
    return set(get_experiments(script)[0]["choices"]["VARIANT"])
