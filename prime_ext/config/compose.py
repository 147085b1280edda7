# SPDX-License-Identifier: Apache-2.0
"""Configurations of ``prime_ext.config``, with one line for what is wrong."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from prime_ext.config.checks import SettingsError

CONFIG_MODULE = "prime_ext.config"
_OVERRIDDEN = re.compile("Could not override '([^']+)'")


def compose_config(name: str, overrides: Sequence[str]) -> DictConfig:
    """Compose a primary configuration and resolve its interpolations.

    Args:
        name: of the primary configuration, without ``.yaml``: one of prime_ext.
        overrides: Hydra's ``key=value`` words.

    Raises:
        SettingsError: it does not compose; the line names the key.
    """
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException

    try:
        with initialize_config_module(CONFIG_MODULE, version_base=None):
            config = compose(name, overrides=list(overrides))
        OmegaConf.resolve(config)
    except (HydraException, OmegaConfBaseException) as error:
        # The second half of Hydra's message is advice for its own syntax; the first line names the key.
        cause = error.__cause__ or error
        line = str(error).splitlines()[0]
        if cause is not error:
            line = f"{line} {str(cause).splitlines()[0]}"
        if isinstance(error, OverrideParseException):
            line = f"{error.override} is not understood ({line}); values with signs such as = , {{ want key='value'"
        elif isinstance(error, MissingConfigException) and error.missing_cfg_file:
            line += _hint(Path(error.missing_cfg_file).name, error.options or [], "")
        elif isinstance(cause, ConfigKeyError | ConfigAttributeError) and (found := _OVERRIDDEN.match(line)):
            line += _hint_of_key(compose_config(name, []), found[1])
        raise SettingsError(line) from error
    return config


def _hint_of_key(config: DictConfig, key: str) -> str:
    """What an unknown key may have been meant to be."""
    section, _, rest = "", "", key
    while True:
        name, _, rest = rest.partition(".")
        if name not in config:
            return _hint(name, list(config), section)
        config, section = config[name], f"{section}{name}."
        if not isinstance(config, DictConfig):
            return f"; {section[:-1]} has no keys below it"


def _hint(name: str, known: Sequence[str], section: str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {section}{near[0]}?"
    return f"; there {'are' if len(known) > 1 else 'is'} {', '.join(sorted(known))}" if known else ""
