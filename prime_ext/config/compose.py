# SPDX-License-Identifier: Apache-2.0
"""Configurations of ``prime_ext.config``, and verl's of its SFT trainer, with one line for what is wrong."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from prime_ext.config.checks import SettingsError

CONFIG_MODULE = "prime_ext.config"
# The primary configuration of verl.trainer.sft_trainer.
SFT_CONFIG = "sft_trainer_engine"


def compose_config(name: str, overrides: Sequence[str]) -> DictConfig:
    """Compose a primary configuration and resolve its interpolations.

    Args:
        name: of the primary configuration, without ``.yaml``: one of prime_ext, or :data:`SFT_CONFIG`.
        overrides: Hydra's ``key=value`` words.

    Raises:
        SettingsError: it does not compose; the line names the key.
    """
    from hydra import compose, initialize_config_dir, initialize_config_module
    from hydra.errors import HydraException

    try:
        if name == SFT_CONFIG:
            place: Any = initialize_config_dir(str(_verl_folder() / "trainer" / "config"), version_base=None)
        else:
            place = initialize_config_module(CONFIG_MODULE, version_base=None)
        with place:
            config = compose(name, overrides=list(overrides))
        OmegaConf.resolve(config)
    except (HydraException, OmegaConfBaseException) as error:
        # The second half of Hydra's message is advice for its own syntax; the first line names the key.
        cause = error.__cause__ or error
        line = str(error).splitlines()[0]
        raise SettingsError(line if cause is error else f"{line} {str(cause).splitlines()[0]}") from error
    return config


def _verl_folder() -> Path:
    """Where verl is, without importing it, which takes longer than all the rest."""
    spec = find_spec("verl")
    if spec is None or spec.origin is None:
        raise SettingsError("verl is not installed in this environment")
    return Path(spec.origin).parent
