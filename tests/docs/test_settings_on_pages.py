# SPDX-License-Identifier: Apache-2.0
"""Settings that pages name exist: in commands, on the migration page, in the reference."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf
from pages import PAGES, ROOT, shell_blocks

from prime_ext.config.compose import compose_config
from prime_ext.preflight.check import check_config

# Modules that take overrides of a configuration, and its name.
COMPOSED = {
    "prime_ext.train": "prime_trainer",
    "prime_ext.doctor": "prime_trainer",
    "verl.trainer.main_ppo": "prime_trainer",
    "prime_ext.offline_prm": "offline_prm",
    "prime_ext.step_rm.train": "step_rm",
}
MIGRATION = (ROOT / "docs" / "how_to" / "migration.md").read_text()
TABLE = re.compile(r"^\| there \| here \(`(\w+)`\) \| .*\n\| --- .*\n((?:\|.*\n)+)", re.MULTILINE)


def documented_overrides():
    """Yield configuration and overrides of each command of these modules, and bare overrides."""
    for page in PAGES:
        for line in "\n".join(shell_blocks(page)).replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            module = next((word for word in words if word in COMPOSED), None)
            bare = [word for word in words if re.match(r"[a-z][\w.@]*=", word)]
            overrides = (
                [word for word in words[words.index(module) + 1 :] if "=" in word] if module else []
            )
            overrides = bare if bare == words else overrides
            named = [
                word.partition("=")[2] for word in overrides if word.startswith("--config-name")
            ]
            overrides = [word for word in overrides if not word.startswith("--")]
            # Modules of the pages are tested by runs.
            if overrides and not any(word.startswith("modules=") for word in overrides):
                name = named[0] if named else COMPOSED.get(module, "prime_trainer")
                yield pytest.param(name, overrides, id=f"{page.stem}: {line[:60]}")


def advised_overrides():
    """Yield the overrides in each row of the table of saving memory, which the plan points to."""
    table = (
        (ROOT / "docs" / "how_to" / "cost.md")
        .read_text()
        .split("\n## In which order to save memory\n")[1]
    )
    for row in table.split("\n## ")[0].splitlines():
        words = [
            word for code in re.findall(r"`([^`]+)`", row) for word in code.split() if "=" in word
        ]
        if row.startswith("| ") and words:
            yield pytest.param("prime_trainer", words, id=f"cost: {words[0]}")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "overrides"), [*documented_overrides(), *advised_overrides()])
def test_documented_overrides_pass_the_preflight(name, overrides):
    config = compose_config(name, overrides)
    if name.startswith(("prime_trainer", "pspo_trainer")):
        assert check_config(config) == []


@pytest.mark.parametrize("name", ["prime_trainer", "pspo_trainer", "step_rm"])
def test_every_key_of_the_migration_page_exists(name):
    config = compose_config(name, [])
    rows = [
        line
        for title, body in TABLE.findall(MIGRATION)
        if title == name
        for line in body.splitlines()
    ]
    keys = [key for row in rows for key in re.findall(r"`([^`]+)`", row.split("|")[2])]
    assert len(keys) > 10
    for key in keys:
        parent, _, last = key.rpartition(".")
        section = OmegaConf.select(config, parent) if parent else config
        assert isinstance(section, DictConfig) and last in section.keys(), key


def test_the_reference_of_settings_is_what_its_script_writes(monkeypatch):
    path = Path(ROOT / "docs" / "write_configuration.py")
    monkeypatch.setattr(sys, "path", [*sys.path, str(path.parent)])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    assert writer.page() == writer.PAGE.read_text()
