# SPDX-License-Identifier: Apache-2.0
"""Reward sources from rollouts and scores, as configured, and the advantages of all sources."""

import importlib
import logging
from dataclasses import dataclass, replace
from functools import reduce

import torch

from prime_ext.algorithms.advantage import combine_sources
from prime_ext.algorithms.estimators import RewardSource, compute_advantage
from prime_ext.algorithms.groups import PromptGroups
from prime_ext.methods.rollouts import RewardFunction, Rollouts, ScoredRollouts, Steps, Turns
from prime_ext.methods.settings import PrimeSettings
from prime_ext.methods.source_settings import OWN_SOURCES, MethodSettings, SourceSettings

logger = logging.getLogger(__name__)


class NotFinite(RuntimeError):
    """An advantage of the policy is NaN or infinite; the message is one line."""


@dataclass(frozen=True)
class Sources:
    """Reward sources by name, and metrics."""

    by_name: dict[str, RewardSource]
    metrics: dict[str, float]


@dataclass(frozen=True)
class Advantages:
    """Advantages and returns ``(B, T)``, 0 outside the mask, and metrics.

    ``reward_BT`` is the sum of all sources' rewards, times their coefficients, at the tokens at
    which they are paid.
    """

    advantage_BT: torch.Tensor
    return_BT: torch.Tensor
    reward_BT: torch.Tensor
    metrics: dict[str, float]


def combine_rewards(
    rollouts: Rollouts,
    scored: ScoredRollouts,
    weight: float,
    settings: PrimeSettings,
    gamma: float,
    gae_lambda: float,
) -> Advantages:
    """Return the whitened sum of the advantages of all sources, see :func:`reward_sources`.

    Raises NotFinite.
    """
    sources = reward_sources(rollouts, scored, weight, settings, gamma, gae_lambda)
    advantages = _combine(sources, rollouts, settings, scored.metrics.get("prm/loss"))
    return replace(advantages, metrics={**sources.metrics, **advantages.metrics})


def reward_sources(
    rollouts: Rollouts,
    scored: ScoredRollouts,
    weight: float,
    settings: PrimeSettings,
    gamma: float,
    gae_lambda: float,
) -> Sources:
    """Ask every method for its rewards, and give each its coefficient, discount and estimator.

    If a critic values several of them, their sum is one source. A closed gate (``weight`` 0) only
    sets the coefficient of ``prime.process`` to 0. ``gamma`` and ``gae_lambda`` are
    ``algorithm.gamma`` and ``algorithm.lam``.
    """
    metrics = measure_steps(rollouts, scored.steps) | measure_turns(rollouts, rollouts.turns)
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
            method.coefficient * (weight if method is settings.process else 1.0),
            0.0 if rewards.is_advantage else discount,
            form=settings.baseline,
            estimator="reinforce" if rewards.is_advantage else method.estimator,
            gae_lambda=gae_lambda,
            value_BT=rollouts.value_BT if rewards.value_BT is None else rewards.value_BT,
            turn_end_BT=turn_end_BT,
        )
    return Sources(_join_valued(sources, rollouts.mask_BT, settings), metrics)


def _join_valued(
    sources: dict[str, RewardSource], mask_BT: torch.Tensor, settings: PrimeSettings
) -> dict[str, RewardSource]:
    """Sum the sources that the critic values; their discount, lambda and value are equal."""
    valued = {
        name: source
        for name, source in sources.items()
        if name in settings.critic_sources and source.coefficient != 0
    }
    if len(settings.critic_sources) < 2 or not valued:
        return sources
    paid_BT = reduce(
        torch.add, (source.coefficient * source.kept_reward() for source in valued.values())
    )
    first = next(iter(valued.values()))
    joined = replace(first, reward_BT=paid_BT, mask_BT=mask_BT, coefficient=1.0)
    others = {
        name: source for name, source in sources.items() if name not in settings.critic_sources
    }
    if len(valued) == 1:
        return {**valued, **others}
    return {"_and_".join(valued): joined, **others}


def find_reward_function(method: MethodSettings) -> RewardFunction:
    """Return ``rewards`` of the method's folder, or the function that a user's module registered.

    It is in the module ``source`` next to that of the settings class.
    """
    for registered in OWN_SOURCES.values():
        if type(method) is registered.settings:
            return registered.rewards
    folder = type(method).__module__.rpartition(".")[0]
    return importlib.import_module(f"{folder}.source").rewards


def measure_steps(rollouts: Rollouts, steps: Steps | None) -> dict[str, float]:
    """Count the steps of responses."""
    if steps is None or not rollouts.valid_B.any():
        return {}
    count_B = steps.spans.count_B[rollouts.valid_B].float()
    metrics = {
        "prime/steps/mean": float(count_B.mean()),
        "prime/steps/max": float(count_B.max()),
    }
    return {**metrics, "prime/steps/timed_out": steps.timed_out}


def measure_turns(rollouts: Rollouts, turns: Turns | None) -> dict[str, float]:
    """Count the turns of responses, and average the sums of their rewards."""
    valid_B = rollouts.valid_B
    if turns is None or not valid_B.any():
        return {}
    end_BT = turns.end_BT & rollouts.mask_BT.bool()
    count_B = end_BT.sum(-1)[valid_B].float()
    metrics = {"prime/turns/mean": float(count_B.mean()), "prime/turns/max": float(count_B.max())}
    if turns.reward_BT is not None:
        metrics["prime/turns/reward"] = float((turns.reward_BT * end_BT).sum(-1)[valid_B].mean())
    return metrics


def _combine(
    sources: Sources, rollouts: Rollouts, settings: PrimeSettings, prm_loss: float | None
) -> Advantages:
    """Estimate, sum and whiten each source's advantage.

    Raises NotFinite, with ``prm_loss`` in the message, for NaN or infinity.
    """
    mask_BT = rollouts.mask_BT
    group_B = rollouts.group_B
    valid_BT = rollouts.mask_BT.bool()
    advantage_BT, return_BT, per_source = combine_sources(
        sources.by_name, mask_BT, group_B, settings.whitening
    )
    if settings.critic_sources and rollouts.value_BT is not None:
        # A_t + V_t of the source that the critic values, before its coefficient and whitening.
        (valued,) = [source for source in sources.by_name.values() if source.estimator == "gae"]
        value_BT = torch.where(valid_BT, rollouts.value_BT, rollouts.value_BT.new_zeros(()))
        return_BT = compute_advantage(valued, mask_BT, group_B) + value_BT
    if not advantage_BT[valid_BT].isfinite().all():
        # verl would skip this update of the policy, and most likely all later ones.
        which = [
            name for name, value_BT in per_source.items() if not value_BT[valid_BT].isfinite().all()
        ]
        raise NotFinite(
            "the advantages of this step are not finite because of"
            f" {', '.join(which) or 'their sum'} (prm/loss: {prm_loss}); nothing of this step was"
            " saved. Look at prm/grad_norm of the steps before, lower prm.optim.lr, check the"
            " weights of prm.model.path"
        )
    metrics = {
        f"prime/{name}/return_std": float(value_BT[valid_BT].std())
        for name, value_BT in per_source.items()
    }
    if {"outcome", "process"} <= per_source.keys() and metrics["prime/outcome/return_std"] > 0:
        ratio = metrics["prime/process/return_std"] / metrics["prime/outcome/return_std"]
        metrics["prime/process/return_std_over_outcome"] = ratio
    alone = int((PromptGroups.build(group_B, rollouts.valid_B).size_B == 1).sum())
    metrics["prime/rollouts_without_baseline"] = alone
    if alone:
        logger.warning("%d rollouts are alone in their group: no baseline, no advantage", alone)
    reward_BT = reduce(
        torch.add,
        (source.coefficient * source.kept_reward() for source in sources.by_name.values()),
    )
    return Advantages(advantage_BT, return_BT, reward_BT, metrics)
