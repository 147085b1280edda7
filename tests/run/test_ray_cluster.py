# SPDX-License-Identifier: Apache-2.0
"""Runs on a Ray cluster that is already there: what reaches the workers, and what is refused before Ray is asked."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from prime_ext.preflight.machine import check_cpu
from prime_ext.run.ray_cluster import address_words, check_cluster, environment_words

VARIABLES = "++ray_kwargs.ray_init.runtime_env.env_vars."


def config_of(nodes=1, device="cuda", **init):
    return OmegaConf.create(
        {"trainer": {"nnodes": nodes, "device": device, "n_gpus_per_node": 1}, "ray_kwargs": {"ray_init": init}}
    )


def test_the_address_of_the_environment_becomes_part_of_the_configuration():
    assert address_words([], {"RAY_ADDRESS": "10.0.0.1:6379"}) == ["++ray_kwargs.ray_init.address='10.0.0.1:6379'"]
    assert address_words([], {"RAY_ADDRESS": "local"}) == address_words([], {}) == []
    own = ["+ray_kwargs.ray_init.address=10.0.0.2:6379"]
    assert address_words(own, {"RAY_ADDRESS": "10.0.0.1:6379"}) == []


def test_what_recipes_set_reaches_the_workers_and_secrets_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environment = {
        "VERL_FILE_LOGGER_PATH": "out/metrics.jsonl",
        "PYTHONPATH": "code:/lib",
        "VERL_PLATFORM": "cpu",
        "WANDB_API_KEY": "secret",
        "NCCL_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "",
    }
    assert environment_words(config_of(address="h:1"), environment) == [
        f"{VARIABLES}VERL_FILE_LOGGER_PATH='{tmp_path}/out/metrics.jsonl'",
        f"{VARIABLES}PYTHONPATH='{tmp_path}/code:/lib'",
        f"{VARIABLES}VERL_PLATFORM='cpu'",
    ]
    # Ray that the run starts itself inherits all of it.
    assert environment_words(config_of(), environment) == []
    # What the configuration sets stays.
    config = config_of(address="h:1", runtime_env={"env_vars": {"OMP_NUM_THREADS": "4"}})
    assert environment_words(config, {"OMP_NUM_THREADS": "1"}) == []


@pytest.mark.parametrize("value", ["ignore,error::X", "it's", "a=b c", "{x: 1}"])
def test_any_value_survives_the_syntax_of_hydra(value):
    (word,) = environment_words(config_of(address="h:1"), {"PYTHONWARNINGS": value})
    assert OverridesParser.create().parse_override(word).value() == value


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (config_of(nodes=2), "trainer.nnodes=2 needs a Ray cluster of 2 nodes"),
        (config_of(address="h:1", num_cpus=16, num_gpus=None), "ray_kwargs.ray_init.num_cpus=16"),
        (config_of(), ""),
        (config_of(nodes=2, address="h:1"), ""),
    ],
)
def test_nodes_without_a_cluster_and_sizes_of_a_running_one_are_refused(config, said):
    problems = list(check_cluster(config))
    assert len(problems) == bool(said) and all(problem.startswith(said) for problem in problems)


def test_logical_slots_are_counted_only_where_the_run_starts_ray(monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    assert list(check_cpu(config_of(device="cpu", address="h:1", num_cpus=None), {})) == []
