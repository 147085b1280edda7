# SPDX-License-Identifier: Apache-2.0
"""Checks of step scorers and of the reward managers that ask them, with a line per problem."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.asynchronous import VERL_MODES, check_async
from prime_ext.config.checks import SettingsError
from prime_ext.config.compose import compose_defaults
from prime_ext.config.step_scorer_settings import (
    SECTION,
    RemoteSettings,
    ScorerSettings,
    ServerSettings,
    get_manager_name,
    require_scorer,
    scorer_section,
)
from prime_ext.config.verl_keys import walk_items
from prime_ext.methods.settings import PrimeSettings
from prime_ext.methods.step_scorer.settings import StepScorerSettings
from prime_ext.names import (
    PAYING_MANAGER,
    STEP_SCORES_MANAGER,
    compares_rollouts,
    list_token_estimators,
)
from prime_ext.preflight.learning_checks import ACTOR, CRITIC, check_learning
from prime_ext.preflight.machine import check_machine, check_names, check_trainer
from prime_ext.preflight.rewards import check_estimator
from prime_ext.step_rm.scorers.build import check_model, check_server

# What the paying manager reads of ``prime``: it pays the last token.
_READ_BY_MANAGER = (
    "prime.variant",
    "prime.steps",
    "prime.process.accumulation",
    "prime.process.credit",
    "prime.process.shaping",
    "prime.verifier.on_failure",
)
_REWARD_POSITION = "prime.process.accumulation.reward_position"


def check_paying_manager(config: DictConfig, prime: PrimeSettings) -> list[str]:
    """Return all problems of a run whose reward manager pays for step scores itself."""
    trained = [ACTOR, CRITIC] if config.algorithm.adv_estimator == "gae" else [ACTOR]
    return [
        *check_names(config),
        *check_trainer(config, VERL_MODES),
        *_check_payment(config, prime),
        *check_manager(config, prime),
        *check_async(config),
        *check_machine(config, trained),
        *check_learning(config, trained),
    ]


def _check_payment(config: DictConfig, prime: PrimeSettings) -> Iterable[str]:
    """Check that verl's trainers can do what the settings ask of them."""
    estimator = config.algorithm.adv_estimator
    rollout = config.actor_rollout_ref.rollout
    key = f"algorithm.adv_estimator={estimator}"
    process = prime.process
    mode = str(config.trainer.v1.trainer_mode).removeprefix("prime_")
    ours = f"set trainer.v1.trainer_mode=prime_{mode} and leave {STEP_SCORES_MANAGER}"
    if prime.verifier.on_failure != "zero":
        yield (
            f"prime.verifier.on_failure={prime.verifier.on_failure}: verl's trainers keep every"
            f" rollout; set it to zero, or {ours}"
        )
    unread = list(_find_unread(config)) if isinstance(process, StepScorerSettings) else []
    if unread:
        yield (
            f"{', '.join(unread)}: {PAYING_MANAGER} and verl's trainers do not read this; leave"
            f" it out, or {ours}"
        )
    yield from check_estimator("algorithm.adv_estimator", estimator)
    if compares_rollouts(estimator) and rollout.n < 2:
        yield (
            f"actor_rollout_ref.rollout.n={rollout.n}: {key} compares the rollouts of a prompt; set"
            " 2 or more"
        )
    pays_steps = isinstance(process, StepScorerSettings) and process.accumulation is None
    if pays_steps and estimator in list_token_estimators():
        yield (
            f"{key} reads the positions of rewards, and {PAYING_MANAGER} pays the last token;"
            f" {ours}"
        )


def _find_unread(config: DictConfig) -> Iterable[str]:
    """Yield changed keys of ``prime`` that the paying manager does not read, with their values."""
    default = compose_defaults("prime_trainer", ("variant=pspo_wrs",))[1]["prime"]
    chosen: Any = OmegaConf.to_container(config.prime, resolve=True)
    expected = dict(walk_items(default, "prime."))
    for key, value in walk_items(chosen, "prime."):
        read = key.startswith(_READ_BY_MANAGER) and key != _REWARD_POSITION
        if not read and not isinstance(value, Mapping) and value != expected.get(key):
            yield f"{key}={value if isinstance(value, str) else json.dumps(value)}"


def check_scorer(config: DictConfig, scorer: ScorerSettings) -> Iterable[str]:
    """Check that the step scorer can be reached, and where it would work."""
    pool = config.reward.reward_model
    if pool.enable and config.reward.custom_reward_function.path is None:
        yield (
            "reward.reward_model.enable=true needs reward.custom_reward_function.path; leave it at"
            " that of prime_ext"
        )
    if isinstance(scorer, ServerSettings):
        yield from _check_server(config, scorer)
    if isinstance(scorer, RemoteSettings):
        return
    gpus = scorer.actor.num_gpus
    device = scorer.device
    if gpus == 0 and device is not None and device != "cpu":
        yield (
            f"step_scorer.device={device} needs a GPU of Ray's; set step_scorer.actor.num_gpus, or"
            " the device to cpu"
        )
    elif gpus > 0 and device == "cpu":
        yield (
            f"step_scorer.actor.num_gpus={gpus} reserves GPUs that step_scorer.device=cpu leaves"
            " idle; set one"
        )
    elif gpus > 0 and config.trainer.device == "cpu":
        yield (
            f"step_scorer.actor.num_gpus={gpus}: there are none with trainer.device=cpu; set it"
            " to 0"
        )


def _check_server(config: DictConfig, scorer: ServerSettings) -> Iterable[str]:
    pool = config.reward.reward_model
    if scorer.address is None and not pool.enable:
        yield (
            "step_scorer.address is not set, nor verl's pool of reward models on; give a URL, or"
            " turn the pool on"
        )
    if scorer.address is None and pool.enable and scorer.model_path and pool.model_path:
        if Path(scorer.model_path).expanduser() != Path(pool.model_path).expanduser():
            ours = f"step_scorer.model_path={scorer.model_path}"
            yield (
                f"reward.reward_model.model_path={pool.model_path} is served, and {ours} is read;"
                " make them equal"
            )


def check_step_rm(config: DictConfig) -> Iterable[str]:
    """Check that a needed step reward model's folder is readable and its server answers."""
    if scorer_section(config) is None:
        return
    try:
        scorer = require_scorer(config)
        check_model(scorer)
        if isinstance(scorer, RemoteSettings) and scorer.address is not None:
            check_server(scorer)
    except SettingsError as error:
        yield from error.problems


def check_manager(config: DictConfig, prime: PrimeSettings) -> Iterable[str]:
    """Check that manager, step scorer and methods agree."""
    key = f"reward.reward_manager.name={config.reward.reward_manager.name}"
    scores_steps = prime.needs.step_scores
    manager = get_manager_name(config)
    gives_scores = manager in (STEP_SCORES_MANAGER, PAYING_MANAGER)
    if gives_scores and not scores_steps:
        yield f"{key}: no method reads step scores; choose variant=step_scorer or pspo_wrs"
    elif scores_steps and not gives_scores:
        yield (
            f"{key}: prime/process=step_scorer reads the scores of {STEP_SCORES_MANAGER}; set that"
        )
    elif not gives_scores and config.get(SECTION) is not None:
        yield (
            f"the section {SECTION} is read by nothing; choose variant=step_scorer, or drop"
            f" +{SECTION}"
        )
    if gives_scores:
        try:
            yield from check_scorer(config, require_scorer(config))
        except SettingsError as error:
            yield from error.problems
