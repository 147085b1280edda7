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
"""Configurations of ``prime_ext.config`` as Hydra composes them, with one line for what is wrong."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prime_ext.settings_checks import SettingsError

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONFIG_MODULE = "prime_ext.config"


def compose_config(name: str, overrides: Sequence[str]) -> "DictConfig":
    """Compose a primary configuration and resolve its interpolations.

    Args:
        name: of the primary configuration, without ``.yaml``.
        overrides: Hydra's ``key=value`` words.

    Raises:
        SettingsError: it does not compose; the line names the key.
    """
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_module(CONFIG_MODULE, version_base=None):
            config = compose(name, overrides=list(overrides))
        OmegaConf.resolve(config)
    except (HydraException, OmegaConfBaseException) as error:
        # The second half of Hydra's message is advice for its own syntax; the first line names the key.
        cause = error.__cause__ or error
        line = str(error).splitlines()[0]
        raise SettingsError(line if cause is error else f"{line} {str(cause).splitlines()[0]}") from error
    return config
