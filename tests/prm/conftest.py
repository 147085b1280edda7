# SPDX-License-Identifier: Apache-2.0
"""The default settings, and what engine programs found on one and two ranks."""

import pytest
from gloo_ranks import run_ranks
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from plain_prm import write_model

from prime_ext.methods.prm_settings import PRMSettings


@pytest.fixture(scope="session")
def config():
    with initialize_config_module("prime_ext.config", version_base=None):
        return compose(
            "prime_trainer_cpu", ["variant=paper", "actor_rollout_ref.model.path=nowhere"]
        )


@pytest.fixture
def prm_settings(config):
    """Return a function that makes the default settings of the PRM with some changes."""
    return lambda **changes: PRMSettings.from_mapping(
        {**OmegaConf.to_container(config.prm, resolve=True), **changes}
    )


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    """Return the model that the ranks of an engine test share."""
    path = tmp_path_factory.mktemp("model")
    write_model(path)
    return path


@pytest.fixture(scope="module")
def runs(request, model_path, tmp_path_factory):
    """Return the findings of the module's PROGRAM, and its folder, by number of ranks."""
    folders = {n: tmp_path_factory.mktemp(f"ranks{n}") for n in (1, 2)}
    results = run_ranks(request.module.PROGRAM, [model_path], folders)
    return {n: (results[n], folder) for n, folder in folders.items()}


@pytest.fixture(params=[1, 2], ids=["1 rank", "2 ranks"])
def run(request, runs):
    return runs[request.param]


@pytest.fixture
def results(run):
    return run[0]
