# SPDX-License-Identifier: Apache-2.0
"""Checks of rewards and advantages against the configuration, with a line per problem."""

from collections.abc import Iterable

from omegaconf import DictConfig

from prime_ext.methods.prm_settings import PRMSettings
from prime_ext.methods.settings import PrimeSettings
from prime_ext.names import compares_rollouts, list_estimators
from prime_ext.preflight.machine import check_name
from prime_ext.upstream import list_registered_estimators

# Estimators that verl's V1 trainer names but gives less than they need.
NOT_IN_V1 = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")


def check_rewards(
    config: DictConfig, prime: PrimeSettings, prm: PRMSettings | None
) -> Iterable[str]:
    """Check that everything is there that the chosen methods and estimators read."""
    outcome = prime.outcome
    n_rollouts = config.actor_rollout_ref.rollout.n
    if prm is not None and prm.update_mode == "none" and prm.reference == "policy":
        if config.prm.model.path == config.actor_rollout_ref.model.path:
            yield (
                f"prm.model.path={config.prm.model.path} is the policy itself; name a teacher"
                " there, or train it"
            )
    if outcome.of_verl:
        yield from check_estimator(
            "prime.outcome.estimator", outcome.estimator, list_estimators("outcome")
        )
    if n_rollouts < 2:
        yield from _check_single_rollouts(n_rollouts, prime)
    for method in prime.methods.values():
        yield from method.run_problems(config, prime)


def check_estimator(key: str, name: str, ours: Iterable[str] = ()) -> Iterable[str]:
    """Check that an estimator is ``ours``, or one of verl's that its trainer can call."""
    if name in NOT_IN_V1:
        yield f"{key}={name} needs more than verl's V1 trainer gives it; choose another"
    else:
        yield from check_name(key, name, {*ours, *list_registered_estimators()} - {*NOT_IN_V1})


def _check_single_rollouts(n_rollouts: int, prime: PrimeSettings) -> Iterable[str]:
    key = f"actor_rollout_ref.rollout.n={n_rollouts}"
    for name, estimator in prime.estimators.items():
        if compares_rollouts(estimator):
            yield (
                f"{key}: prime.{name}.estimator={estimator} compares the rollouts of a prompt; set"
                " 2 or more"
            )
    if prime.filter.enable:
        yield f"{key}: a single rollout is never inside prime.filter; disable it"


def check_critic(config: DictConfig, prime: PrimeSettings) -> Iterable[str]:
    """Check that a source uses verl's critic if ``algorithm.adv_estimator=gae``, and only then."""
    algorithm = config.algorithm
    critic = config.critic
    estimator = f"algorithm.adv_estimator={algorithm.adv_estimator}"
    sources = " and ".join(f"prime.{name}.estimator=gae" for name in prime.critic_sources)
    if prime.critic_sources and algorithm.adv_estimator != "gae":
        yield f"{sources} needs a critic, which verl builds for algorithm.adv_estimator=gae; set it"
    elif not prime.critic_sources and algorithm.adv_estimator == "gae":
        yield (
            f"{estimator} builds a critic that no source reads; set prime.outcome.estimator=gae, or"
            " leave rloo"
        )
    elif prime.critic_sources and prime.outcome.of_verl:
        yield (
            f"prime.outcome.estimator={prime.outcome.estimator} is computed by verl without the"
            f" critic of {sources}"
        )
    elif algorithm.adv_estimator not in ("rloo", "gae", prime.outcome.estimator):
        yield (
            f"{estimator} would be computed and thrown away; set prime.outcome.estimator, and leave"
            " it at rloo"
        )
    for name in prime.critic_sources if len(prime.critic_sources) > 1 else ():
        discount = getattr(prime.reward_sources[name], "discount", algorithm.gamma)
        if discount != algorithm.gamma:
            yield (
                f"prime.{name}.discount={discount} and algorithm.gamma={algorithm.gamma} must be"
                " equal: one critic values the sum of both sources"
            )
    if critic.get("enable") is not None and bool(critic.enable) != bool(prime.critic_sources):
        yield (
            f"critic.enable={str(critic.enable).lower()} contradicts prime.outcome.estimator; leave"
            " it unset"
        )
