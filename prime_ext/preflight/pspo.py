# SPDX-License-Identifier: Apache-2.0
"""Checks of the reward manager ``pspo_wrs`` against the rest of the configuration. One line per problem."""

from collections.abc import Iterable
from pathlib import Path

from omegaconf import DictConfig

from prime_ext.config.asynchronous import PSPO_MODES, VERL_MODES, check_async
from prime_ext.config.checks import SettingsError
from prime_ext.config.pspo_settings import (
    GROUP_ESTIMATORS,
    MANAGER,
    SECTION,
    TOKEN_ESTIMATORS,
    PSPOSettings,
    sections_of,
    uses_manager,
)
from prime_ext.config.settings import PrimeSettings
from prime_ext.config.step_scorer_settings import ScorerSettings
from prime_ext.preflight.machine import (
    Optimiser,
    actor_optimiser,
    check_adapter,
    check_attention,
    check_batches,
    check_cpu,
    check_fused_kernels,
    check_learning_rates,
    check_token_budgets,
    check_whole_numbers,
    critic_optimiser,
    policy_strategies,
)
from prime_ext.run.console import check_console
from prime_ext.step_rm.scorers.build import check_model

# Estimators that verl's V1 trainer names but gives less than they need.
_NOT_IN_V1 = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")


def check_pspo_config(config: DictConfig) -> list[str]:
    """Everything that can be said from a configuration for the ``pspo_*`` trainers, or verl's own with the manager."""
    problems = [*check_whole_numbers(config)]
    try:
        pspo, scorer = sections_of(config)
    except SettingsError as error:
        return [*problems, str(error)]
    if problems:
        return problems
    optimisers, strategies = [actor_optimiser(config)], policy_strategies(config)
    if config.algorithm.adv_estimator == "gae":
        optimisers.append(critic_optimiser(config))
        strategies["critic.strategy"] = config.critic.strategy
    return [
        *_check_trainer(config, pspo),
        *check_scorer(config, pspo, scorer),
        *check_async(config),
        *_check_micro_batches(optimisers, config),
        *check_batches(config, optimisers),
        *check_token_budgets(config, optimisers),
        *check_adapter(config),
        *check_learning_rates(config, optimisers),
        *check_fused_kernels(config, {"actor_rollout_ref.model": config.actor_rollout_ref.model}),
        *check_attention(config, {"actor_rollout_ref.model": config.actor_rollout_ref.model}),
        *check_cpu(config, strategies),
        *check_console(config),
    ]


def _check_trainer(config: DictConfig, pspo: PSPOSettings) -> Iterable[str]:
    mode, estimator = config.trainer.v1.trainer_mode, config.algorithm.adv_estimator
    if not config.trainer.use_v1:
        yield "trainer.use_v1=false selects verl's deprecated trainer; PSPO-WRS needs trainer.use_v1=true"
    if mode not in (*PSPO_MODES, *VERL_MODES):
        yield f"trainer.v1.trainer_mode={mode} is not one of {', '.join((*PSPO_MODES, *VERL_MODES))}"
    if not uses_manager(config):
        yield f"reward.reward_manager.name={config.reward.reward_manager.name} does not read pspo; set it to {MANAGER}"
    if config.actor_rollout_ref.rollout.temperature <= 0:
        yield f"actor_rollout_ref.rollout.temperature={config.actor_rollout_ref.rollout.temperature} must be above 0"
    if mode in VERL_MODES and pspo.on_failure != "zero":
        yield (
            f"pspo.on_failure={pspo.on_failure} is known to the pspo_* trainers only; set "
            f"trainer.v1.trainer_mode=pspo_{mode}, or pspo.on_failure=zero"
        )
    if mode in VERL_MODES and pspo.pays_tokens and estimator in TOKEN_ESTIMATORS:
        what = "mode=none" if pspo.accumulation.mode == "none" else f"place={pspo.accumulation.place}"
        yield (
            f"pspo.accumulation.{what} pays elsewhere than at the last token, which verl's own trainers cannot; set "
            f"trainer.v1.trainer_mode=pspo_{mode}"
        )
    yield from _check_estimator(config, pspo)


def _check_estimator(config: DictConfig, pspo: PSPOSettings) -> Iterable[str]:
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    estimator, n_rollouts = config.algorithm.adv_estimator, config.actor_rollout_ref.rollout.n
    if estimator in _NOT_IN_V1:
        yield f"algorithm.adv_estimator={estimator} needs more than verl's V1 trainer gives it; choose another"
    elif estimator not in ADV_ESTIMATOR_REGISTRY:
        yield f"algorithm.adv_estimator={estimator} is not one of {', '.join(sorted(ADV_ESTIMATOR_REGISTRY))}"
    if estimator in GROUP_ESTIMATORS and n_rollouts < 2:
        yield (
            f"actor_rollout_ref.rollout.n={n_rollouts}: algorithm.adv_estimator={estimator} compares the rollouts of a "
            f"prompt and needs at least 2"
        )
    if pspo.accumulation.place != "last_token" and estimator not in TOKEN_ESTIMATORS:
        yield (
            f"pspo.accumulation.place={pspo.accumulation.place}: algorithm.adv_estimator={estimator} sums the rewards "
            f"of a response, wherever they are; leave it at last_token, or use {' or '.join(TOKEN_ESTIMATORS)}"
        )


def _check_micro_batches(optimisers: Iterable[Optimiser], config: DictConfig) -> Iterable[str]:
    sections = {"actor_rollout_ref.actor": config.actor_rollout_ref.actor, "critic": config.critic}
    for optimiser in optimisers:
        section = optimiser.key.rsplit(".", 1)[0]
        if not sections[section].use_dynamic_bsz and not optimiser.micro_batch:
            yield (
                f"{section}.ppo_micro_batch_size_per_gpu is not set; set it, or {section}.use_dynamic_bsz=true to "
                f"bound a forward pass by tokens"
            )


def check_scorer(config: DictConfig, pspo: PSPOSettings, scorer: ScorerSettings) -> Iterable[str]:
    """Whether the step scorer can be reached, and where it would work."""
    pool = config.reward.reward_model
    if pool.enable and not pool.enable_resource_pool:
        yield (
            "reward.reward_model.enable=true without its own resource pool scores after sampling and without the rows' "
            "gold answers; set reward.reward_model.enable_resource_pool=true"
        )
    if pool.enable and config.reward.custom_reward_function.path is None:
        yield (
            "reward.reward_model.enable=true makes verl pass over reward managers unless "
            "reward.custom_reward_function.path is set; leave it at pkg://prime_ext.reward.compute_score"
        )
    if scorer.kind == "server":
        yield from _check_server(config, pspo, scorer)
        return
    gpus, device = pspo.actor.num_gpus, scorer.device
    if gpus == 0 and device is not None and device != "cpu":
        yield f"step_scorer.device={device} needs a GPU of Ray's; set pspo.actor.num_gpus, or the device to cpu"
    if gpus > 0 and device == "cpu":
        yield f"pspo.actor.num_gpus={gpus} reserves GPUs that step_scorer.device=cpu does not use; set one of the two"
    if gpus > 0 and config.trainer.device == "cpu":
        yield f"pspo.actor.num_gpus={gpus}: there are none with trainer.device=cpu; set it to 0"


def _check_server(config: DictConfig, pspo: PSPOSettings, scorer: ScorerSettings) -> Iterable[str]:
    pool = config.reward.reward_model
    if scorer.address is None and not pool.enable:
        yield (
            "step_scorer.address is not set and verl's reward-model pool is off; give a URL, or set "
            "reward.reward_model.enable=true"
        )
    if scorer.address is None and pool.enable and scorer.model_path and pool.model_path:
        ours, theirs = (Path(path).expanduser() for path in (scorer.model_path, pool.model_path))
        if ours != theirs:
            yield (
                f"reward.reward_model.model_path={pool.model_path} is served, but step_scorer.model_path="
                f"{scorer.model_path} says what it reads; make them equal"
            )
    if pspo.actor.num_gpus > 0 or pspo.actor.cpu_threads is not None:
        yield "pspo.actor is read with step_scorer.kind=local only; leave num_gpus at 0 and cpu_threads null"


def check_step_rm(config: DictConfig) -> Iterable[str]:
    """Whether the step reward model's folder can be read, where the manager needs one."""
    if not uses_manager(config):
        return
    try:
        _, scorer = sections_of(config)
    except SettingsError:
        # Which check_config reports.
        return
    try:
        check_model(scorer)
    except SettingsError as error:
        yield str(error)


def check_manager_in_prime(config: DictConfig, prime: PrimeSettings) -> Iterable[str]:
    """Whether the manager can give PRIME its outcome reward; nothing where there is another."""
    if not uses_manager(config):
        if config.get(SECTION) is not None:
            yield f"the section pspo is read with reward.reward_manager.name={MANAGER} only; set it, or drop +pspo=pspo"
        return
    try:
        pspo, scorer = sections_of(config)
    except SettingsError as error:
        yield str(error)
        return
    yield from check_scorer(config, pspo, scorer)
    if not pspo.judge and prime.label_key == "acc":
        yield "pspo.judge=false leaves PRM and prompt filter without labels (prime.label_key=acc); set it to true"
    if pspo.accumulation.place != "last_token":
        yield (
            f"pspo.accumulation.place={pspo.accumulation.place}: PRIME pays the outcome reward at the last token; "
            f"leave it at last_token, or use the pspo_* trainers"
        )
    for key in ("on_failure", "warn_rate"):
        ours, theirs = getattr(pspo, key), getattr(prime.verifier, key)
        if ours != theirs:
            yield f"pspo.{key}={ours}: in PRIME, prime.verifier.{key}={theirs} counts; set both alike"
