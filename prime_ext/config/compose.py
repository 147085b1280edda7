# SPDX-License-Identifier: Apache-2.0
"""Composition of the configurations of ``prime_ext.config``; every mistake is one line."""

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from prime_ext.config.checks import SettingsError, guess, refuse
from prime_ext.config.verl_keys import check_values, guess_key
from prime_ext.upstream import find_configurations

CONFIG_MODULE = "prime_ext.config"
# Keys that decide which other keys their section has; a group of files sets them together.
_CHOICES = ("prime.process.form=", "step_scorer.kind=", "prm.update_mode=none")
_OVERRIDDEN = re.compile("Could not override '([^']+)'")
# Words of the configuration pspo_trainer of earlier versions, and those that replace them.
_RENAMED = {
    "chain@pspo=": "chain@prime.process=",
    "pspo.steps": "prime.steps",
    "pspo.on_failure": "prime.verifier.on_failure",
    "pspo.judge": "leave it out: responses are graded where a row has a gold answer",
    "pspo.": "prime.process.",
    "trainer.v1.trainer_mode=pspo_": "trainer.v1.trainer_mode=prime_",
}


def compose_config(
    name: str,
    overrides: Sequence[str],
    check_first: Callable[[DictConfig], None] = lambda config: None,
) -> DictConfig:
    """Compose a primary configuration and resolve its interpolations.

    ``name`` is a primary configuration of prime_ext, without ``.yaml``; ``overrides`` are Hydra's
    ``key=value`` words. ``check_first`` is called before verl is imported, to check its keys.
    Raises SettingsError: it does not compose; the line names the key.
    """
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException

    chosen = next((word for word in overrides if word.startswith(_CHOICES)), None)
    if chosen is not None:
        key, _, value = chosen.replace("prm.update_mode=none", "prm.update_mode=frozen").partition(
            "="
        )
        raise SettingsError(
            f"{chosen}: choose it with its keys, {key.rpartition('.')[0].replace('.', '/')}={value}"
        )
    for word in overrides:
        bare = word.lstrip("+~")
        for old, new in _RENAMED.items():
            if bare.startswith(old):
                remedy = new if " " in new else f"set {new}{bare.removeprefix(old)}"
                raise SettingsError(f"{word}: PSPO-WRS is variant=pspo_wrs now; {remedy}")
    try:
        with initialize_config_module(CONFIG_MODULE, version_base=None):
            config = compose(name, overrides=[*_search_path(overrides), *overrides])
            groups = tuple(
                word
                for word in overrides
                if not word.startswith("~") and _chooses_group(name, word)
            )
        unresolved = OmegaConf.to_container(config)
        OmegaConf.resolve(config)
    except (HydraException, OmegaConfBaseException) as error:
        # The first line of Hydra's message names the key; the rest is advice for its own syntax.
        cause = error.__cause__ or error
        line = str(error).splitlines()[0]
        if cause is not error:
            line = f"{line} {str(cause).splitlines()[0]}"
        if isinstance(error, OverrideParseException):
            line = (
                f"{error.override} is not understood ({line}); values with signs such as = , {{"
                " want key='value'"
            )
        elif isinstance(error, MissingConfigException) and error.missing_cfg_file:
            missing = Path(error.missing_cfg_file).name
            options = sorted(error.options or [])
            line += guess(missing, options) or f"; there are {', '.join(options)}"
        elif "'chain@prime.process'. No match" in line:
            line += "; it goes with prime/process=steps or step_scorer"
        elif isinstance(cause, ConfigKeyError | ConfigAttributeError) and (
            match := _OVERRIDDEN.match(line)
        ):
            line += _guess_choice(match[1]) or guess_key(match[1], compose_defaults(name, ())[0])
        raise SettingsError(line) from error
    except ValueError as error:
        nulls = " ".join(word for word in overrides if word.endswith("=null"))
        raise SettingsError(f"{nulls}: {error}") from error
    check_first(config)
    refuse(
        check_values(unresolved, OmegaConf.to_container(config), *compose_defaults(name, groups))
    )
    return config


def _search_path(overrides: Sequence[str]) -> list[str]:
    """Return the override by which Hydra finds verl's configurations without importing verl."""
    if any(word.startswith("hydra.searchpath=") for word in overrides):
        return []
    return [f"hydra.searchpath=[file://{find_configurations()}]"]


def _guess_choice(key: str) -> str:
    """Return a hint at the choices of a group that have a key which the run's section lacks."""
    section, _, name = key.rpartition(".")
    if key.startswith("prime.sources."):
        return f"; a source of yours is added by +{key}"
    if key.startswith(("prime.process.accumulation", "prime.process.shaping")):
        return (
            "; a chain has these keys: choose prime/process=steps or step_scorer, and"
            " chain@prime.process=pspo_wrs or cn_ppo"
        )
    files = sorted((Path(__file__).parent / section.replace(".", "/")).glob("*.yaml"))
    having = [file.stem for file in files if section and name in OmegaConf.load(file)]
    return f"; it is a key of {section.replace('.', '/')}={' or '.join(having)}" if having else ""


def _chooses_group(name: str, word: str) -> bool:
    """Return whether a word of the command line chooses among files, and does not set a value."""
    from hydra.core.global_hydra import GlobalHydra

    group = word.lstrip("+").partition("=")[0].partition("@")[0]
    loader = GlobalHydra.instance().config_loader()
    return "." not in group and bool(loader.get_group_options(group, config_name=name))


@functools.cache
def compose_defaults(name: str, groups: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return :func:`read_defaults` of a primary configuration with these choices of groups."""
    from hydra import compose, initialize_config_module

    with initialize_config_module(CONFIG_MODULE, version_base=None):
        return read_defaults(compose(name, overrides=[*_search_path(groups), *groups]))


def read_defaults(config: DictConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a configuration without the user's values, raw and with interpolations resolved.

    In the second, keys that only the user can set are null; afterwards also in ``config``.
    """
    raw: Any = OmegaConf.to_container(config)
    for key in OmegaConf.missing_keys(config):
        OmegaConf.update(config, key, None)
    resolved: Any = OmegaConf.to_container(config, resolve=True)
    return raw, resolved
