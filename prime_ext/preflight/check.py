# SPDX-License-Identifier: Apache-2.0
"""Checks of a configuration alone, before Ray or a model starts, with one line per problem."""

import os
from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig

from prime_ext.config.asynchronous import PRIME_MODES, check_async
from prime_ext.config.checks import SettingsError
from prime_ext.config.compose import compose_config
from prime_ext.config.modules import import_for_verl
from prime_ext.config.step_scorer_settings import get_manager_name
from prime_ext.methods.prm_settings import PRMSettings, TrainedPRMSettings
from prime_ext.methods.settings import PrimeSettings, prm_section
from prime_ext.names import PAYING_MANAGER
from prime_ext.preflight.file_checks import check_files as check_files
from prime_ext.preflight.learning_checks import ACTOR, CRITIC, PRM, check_learning
from prime_ext.preflight.machine import check_machine, check_names, check_trainer
from prime_ext.preflight.prm_checks import check_prm
from prime_ext.preflight.rewards import check_critic, check_rewards
from prime_ext.preflight.step_scorer_checks import check_manager, check_paying_manager


def compose_for_verl(config_name: str, overrides: list[str]) -> DictConfig:
    """Compose and resolve, and import the user's modules.

    Sets ``VERL_PLATFORM=cpu`` when the configuration asks for the CPU. Raises SettingsError: it
    does not compose, or a module cannot be imported.
    """
    # Before composing, because Hydra looks for configurations in verl, and verl chooses its
    # platform when imported.
    device = "cpu" if config_name.endswith("_cpu") else ""
    for word in overrides:
        key, _, value = word.partition("=")
        device = value if key == "trainer.device" else device
    if device == "cpu":
        os.environ.setdefault("VERL_PLATFORM", "cpu")
    config = compose_config(config_name, overrides, _check_sections)
    import_for_verl(config.modules)
    return config


def _check_sections(config: DictConfig) -> None:
    """Raise SettingsError for wrong keys and values of ours; users' modules may add names to them.

    Conflicts between settings are reported with all other problems of a run.
    """
    if not config.get("modules") and "prime" in config:
        PrimeSettings.from_config(config, find_conflicts=False)
        PRMSettings.from_config(config, find_conflicts=False)


def check_config(config: DictConfig) -> list[str]:
    """Return all problems of a configuration."""
    problems: list[str] = []
    sections: list[Any] = []
    for kind in (PrimeSettings, PRMSettings):
        try:
            sections.append(kind.from_config(config))
        except SettingsError as error:
            problems.extend(error.problems)
    if problems:
        return problems
    prime = sections[0]
    if get_manager_name(config) == PAYING_MANAGER:
        return check_paying_manager(config, prime)
    prm = None if prm_section(config) is None else sections[1]
    critic = [CRITIC] if prime.critic_sources else []
    trained = [ACTOR, *([] if prm is None else [PRM]), *critic]
    learners = [ACTOR, *([PRM] if isinstance(prm, TrainedPRMSettings) else []), *critic]
    return [
        *check_names(config),
        *_check_trainer(config, prime),
        *check_rewards(config, prime, prm),
        *check_critic(config, prime),
        *check_async(config),
        *check_machine(config, trained),
        *check_learning(config, learners),
        *([] if prm is None else check_prm(config, prm)),
        *check_manager(config, prime),
    ]


def _check_trainer(config: DictConfig, prime: PrimeSettings) -> Iterable[str]:
    sampler = config.trainer.v1.sampler
    yield from check_trainer(config, PRIME_MODES)
    if config.algorithm.filter_groups.enable:
        yield (
            "algorithm.filter_groups.enable=true is verl's filter; use prime.filter instead and"
            " leave it false"
        )
    if sampler.custom_sampler.path and sampler.custom_sampler.name and prime.filter.enable:
        yield (
            "trainer.v1.sampler.custom_sampler replaces the prompt filter; set"
            " prime.filter.enable=false"
        )
