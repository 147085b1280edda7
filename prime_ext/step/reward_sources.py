# SPDX-License-Identifier: Apache-2.0
"""Reward sources of a step: every chosen method is asked for its rewards."""

import importlib
from dataclasses import dataclass

from prime_ext.algorithms.estimators import RewardSource
from prime_ext.methods.measures import count_lonely, measure_steps, measure_turns
from prime_ext.methods.rollouts import RewardFunction, Rollouts, ScoredRollouts
from prime_ext.methods.settings import PrimeSettings
from prime_ext.methods.source_settings import OWN_SOURCES, MethodSettings, SourceSettings


@dataclass(frozen=True)
class Sources:
    """Reward sources by name, and metrics."""

    by_name: dict[str, RewardSource]
    metrics: dict[str, float]


def reward_sources(
    rollouts: Rollouts,
    scored: ScoredRollouts,
    settings: PrimeSettings,
    gamma: float,
    gae_lambda: float,
) -> Sources:
    """Ask every method for its rewards, and give each its coefficient, discount and estimator.

    The reliability gate is not in them. ``gamma`` and ``gae_lambda`` are ``algorithm.gamma`` and
    ``algorithm.lam``.
    """
    metrics: dict[str, float] = {}
    turn_end_BT = None if rollouts.turns is None else rollouts.turns.end_BT
    sources = {}
    for name, method in settings.reward_sources.items():
        rewards = find_reward_function(method)(rollouts, scored, method)
        if rewards is None:
            continue
        metrics |= rewards.metrics
        discount = method.discount if isinstance(method, SourceSettings) else gamma
        sources[name] = RewardSource(
            rewards.reward_BT,
            rewards.mask_BT,
            method.coefficient,
            0.0 if rewards.is_advantage else discount,
            form=settings.baseline,
            estimator="reinforce" if rewards.is_advantage else method.estimator,
            gae_lambda=gae_lambda,
            value_BT=rollouts.value_BT if rewards.value_BT is None else rewards.value_BT,
            turn_end_BT=turn_end_BT,
        )
    metrics |= measure_steps(rollouts, scored.steps) | measure_turns(rollouts, rollouts.turns)
    metrics |= count_lonely(rollouts)
    return Sources(sources, metrics)


def find_reward_function(method: MethodSettings) -> RewardFunction:
    """Return ``rewards`` of the method's folder, or the function that a user's module registered.

    It is in the module ``source`` next to that of the settings class.
    """
    for registered in OWN_SOURCES.values():
        if type(method) is registered.settings:
            return registered.rewards
    folder = type(method).__module__.rpartition(".")[0]
    return importlib.import_module(f"{folder}.source").rewards
