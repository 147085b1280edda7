# SPDX-License-Identifier: Apache-2.0
"""Checks of reward managers with step scores against the configuration, with a line per problem."""

from collections.abc import Iterable
from pathlib import Path

from omegaconf import DictConfig

from prime_ext.config.asynchronous import PSPO_MODES, VERL_MODES, check_async
from prime_ext.config.checks import SettingsError
from prime_ext.config.pspo_settings import (
    MANAGER,
    SECTION,
    PSPOSettings,
    get_manager_name,
    read_pspo_sections,
    scorer_section,
)
from prime_ext.config.step_scorer_settings import MANAGER as STEP_SCORES_MANAGER
from prime_ext.config.step_scorer_settings import SECTION as SCORER_SECTION
from prime_ext.config.step_scorer_settings import ScorerSettings, ServerSettings, require_scorer
from prime_ext.methods.settings import PrimeSettings
from prime_ext.names import compares_rollouts, list_token_estimators
from prime_ext.preflight.learning_checks import ACTOR, CRITIC, check_learning
from prime_ext.preflight.machine import check_machine, check_names, check_trainer
from prime_ext.preflight.rewards import check_estimator
from prime_ext.step_rm.scorers.build import check_model, check_server


def check_pspo(config: DictConfig) -> list[str]:
    """Return all problems of a configuration of PSPO-WRS, also for verl's own trainers."""
    try:
        pspo, scorer = read_pspo_sections(config)
    except SettingsError as error:
        return [*error.problems]
    trained = [ACTOR, CRITIC] if config.algorithm.adv_estimator == "gae" else [ACTOR]
    return [
        *check_names(config),
        *_check_trainer(config, pspo),
        *check_scorer(config, scorer),
        *check_async(config),
        *check_machine(config, trained),
        *check_learning(config, trained),
    ]


def _check_trainer(config: DictConfig, pspo: PSPOSettings) -> Iterable[str]:
    mode = config.trainer.v1.trainer_mode
    estimator = config.algorithm.adv_estimator
    rollout = config.actor_rollout_ref.rollout
    position = pspo.reward_position
    key = f"algorithm.adv_estimator={estimator}"
    yield from check_trainer(config, PSPO_MODES + VERL_MODES)
    if get_manager_name(config) != MANAGER:
        yield (
            f"reward.reward_manager.name={config.reward.reward_manager.name} does not read pspo;"
            f" set it to {MANAGER}"
        )
    if mode in VERL_MODES and pspo.on_failure != "zero":
        yield (
            f"pspo.on_failure={pspo.on_failure} is for trainer.v1.trainer_mode=pspo_{mode}; set"
            " that, or zero"
        )
    if mode in VERL_MODES and pspo.pays_tokens and estimator in list_token_estimators():
        what = (
            "accumulation=null"
            if pspo.accumulation is None
            else f"accumulation.reward_position={position}"
        )
        yield f"pspo.{what} pays within a response; set trainer.v1.trainer_mode=pspo_{mode}"
    yield from check_estimator("algorithm.adv_estimator", estimator)
    if compares_rollouts(estimator) and rollout.n < 2:
        yield (
            f"actor_rollout_ref.rollout.n={rollout.n}: {key} compares the rollouts of a prompt; set"
            " 2 or more"
        )
    if position != "last_token" and estimator not in list_token_estimators():
        remedy = f"leave it at last_token, or use {' or '.join(list_token_estimators())}"
        yield f"pspo.accumulation.reward_position={position}: {key} sums over a response; {remedy}"


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
        if isinstance(scorer, ServerSettings) and scorer.address is not None:
            check_server(scorer)
    except SettingsError as error:
        yield from error.problems


def check_manager_in_prime(config: DictConfig, prime: PrimeSettings) -> Iterable[str]:
    """Check that manager and ``prime.process`` agree."""
    key = f"reward.reward_manager.name={config.reward.reward_manager.name}"
    reads_steps = prime.needs.step_scores
    manager = get_manager_name(config)
    if manager == MANAGER or config.get(SECTION) is not None:
        yield (
            f"{MANAGER} is for --config-name=pspo_trainer; PRIME reads scores of steps with"
            " variant=step_scorer"
        )
    elif manager == STEP_SCORES_MANAGER and not reads_steps:
        yield f"{key}: prime.process reads no step scores; choose variant=step_scorer"
    elif manager != STEP_SCORES_MANAGER and reads_steps:
        yield (
            f"{key}: prime/process=step_scorer reads the scores of {STEP_SCORES_MANAGER}; set that"
        )
    elif manager != STEP_SCORES_MANAGER and config.get(SCORER_SECTION) is not None:
        yield (
            f"the section {SCORER_SECTION} is read by nothing; choose variant=step_scorer, or drop"
            f" +{SCORER_SECTION}"
        )
    if manager == STEP_SCORES_MANAGER:
        try:
            yield from check_scorer(config, require_scorer(config))
        except SettingsError as error:
            yield from error.problems
