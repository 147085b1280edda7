# SPDX-License-Identifier: Apache-2.0
"""docs/migration.md: our keys exist under the configuration that the head of their table names."""

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from prime_ext.config.compose import CONFIG_MODULE, compose_config
from prime_ext.config.settings import PrimeSettings, PRMSettings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "migration.md").read_text()
TABLE = re.compile(r"^\| there \| here \(`(\w+)`\) \| .*\n\| --- .*\n((?:\|.*\n)+)", re.MULTILINE)


def tables() -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Name of the configuration, and rows of the other's key and ours, of every table."""
    found = []
    for name, body in TABLE.findall(PAGE):
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in body.splitlines()]
        found.append((name, [(there, re.findall(r"`([^`]+)`", here)) for there, here, _ in rows]))
    return found


def has_key(config: DictConfig, dotted: str) -> bool:
    """Whether the key is there, whatever its value; null counts."""
    *parents, last = dotted.split(".")
    node = OmegaConf.select(config, ".".join(parents)) if parents else config
    return isinstance(node, DictConfig) and last in node.keys()


def composed(name: str) -> DictConfig:
    with initialize_config_module(CONFIG_MODULE, version_base=None):
        return compose(name)


def test_there_is_a_table_for_each_of_the_three_and_for_the_step_reward_model():
    assert [name for name, _ in tables()] == ["prime_trainer", "prime_trainer", "pspo_trainer", "step_rm"]
    assert [len(rows) for _, rows in tables()] == [line.count("\n") for _, line in TABLE.findall(PAGE)]


@pytest.mark.parametrize("name", ["prime_trainer", "pspo_trainer", "step_rm"])
def test_every_key_of_ours_exists(name):
    config = composed(name)
    keys = [key for found, rows in tables() if found == name for _, ours in rows for key in ours]
    assert len(keys) > 10
    assert [key for key in keys if not has_key(config, key)] == []


def test_a_row_names_a_key_of_ours_or_says_that_there_is_none():
    cells = [line.split("|")[2].strip() for _, body in TABLE.findall(PAGE) for line in body.splitlines()]
    assert [cell for cell in cells if cell != "-" and not re.fullmatch(r"`[^`]+`(, `[^`]+`)*", cell)] == []


def test_a_key_that_is_nowhere_is_noticed():
    config = composed("prime_trainer")
    assert has_key(config, "prime.process.reliability_gate")
    assert not has_key(config, "prime.process.gate")
    assert not has_key(config, "reward_model.prime_norm")


def test_the_overrides_on_the_page_are_a_configuration_of_prime():
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    words = shlex.split(block.replace("\\\n", " "))
    overrides = [word for word in words if "=" in word]
    config = compose_config("prime_trainer", [*overrides, "actor_rollout_ref.model.path=model"])
    prime = PrimeSettings.from_mapping(OmegaConf.to_container(config.prime))
    prm = PRMSettings.from_mapping(OmegaConf.to_container(config.prm))
    assert (prime.process.granularity, prime.filter.oversample, prime.gates) == ("prefix_value", 4.0, False)
    assert (prm.update_mode, prm.mini_batch_size * config.actor_rollout_ref.rollout.n) == ("before", 64)
