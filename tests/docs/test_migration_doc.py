# SPDX-License-Identifier: Apache-2.0
"""docs/how_to/migration.md: our keys exist under the configuration that the head of their table names."""

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from prime_ext.config.compose import CONFIG_MODULE, compose_config
from prime_ext.config.settings import PrimeSettings, PRMSettings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how_to" / "migration.md").read_text()
TABLE = re.compile(r"^\| there \| here \(`(\w+)`\) \| .*\n\| --- .*\n((?:\|.*\n)+)", re.MULTILINE)


def keys_of(name: str) -> list[str]:
    """Our keys in the tables of a configuration: those of the second column."""
    rows = [line for found, body in TABLE.findall(PAGE) if found == name for line in body.splitlines()]
    return [key for row in rows for key in re.findall(r"`([^`]+)`", row.split("|")[2])]


def has_key(config: DictConfig, dotted: str) -> bool:
    """Whether the key is there, whatever its value; null counts."""
    *parents, last = dotted.split(".")
    node = OmegaConf.select(config, ".".join(parents)) if parents else config
    return isinstance(node, DictConfig) and last in node.keys()


@pytest.mark.parametrize("name", ["prime_trainer", "pspo_trainer", "step_rm"])
def test_every_key_of_ours_exists(name):
    with initialize_config_module(CONFIG_MODULE, version_base=None):
        config = compose(name)
    assert len(keys_of(name)) > 10
    assert [key for key in keys_of(name) if not has_key(config, key)] == []


def test_the_overrides_on_the_page_are_a_configuration_of_prime():
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    words = shlex.split(block.replace("\\\n", " "))
    overrides = [word for word in words if "=" in word]
    config = compose_config("prime_trainer", [*overrides, "actor_rollout_ref.model.path=model"])
    prime = PrimeSettings.from_mapping(OmegaConf.to_container(config.prime))
    prm = PRMSettings.from_mapping(OmegaConf.to_container(config.prm))
    assert (prime.process.granularity, prime.filter.oversample, prime.gates) == ("prefix_value", 4.0, False)
    assert (prm.update_mode, prm.mini_batch_size * config.actor_rollout_ref.rollout.n) == ("before", 64)
