# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Makes the engine programs importable (pytest's importlib mode leaves sys.path alone), and the default settings."""

import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from prime_ext.settings import PRMSettings

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def config():
    with initialize_config_module("prime_ext.config", version_base=None):
        return compose("prime_trainer_cpu", ["actor_rollout_ref.model.path=nowhere"])


@pytest.fixture
def prm_settings(config):
    """Makes the default settings of the PRM with some changes."""
    return lambda **changes: PRMSettings.from_mapping({**OmegaConf.to_container(config.prm, resolve=True), **changes})
