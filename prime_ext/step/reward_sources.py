# SPDX-License-Identifier: Apache-2.0
"""Reward sources from rollouts and scores, as configured, and the advantages of all sources."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from prime_ext.algorithms.accumulation import StepScoreFunction
from prime_ext.algorithms.advantage import combine_sources, outcome_source
from prime_ext.algorithms.chain_reward import ChainReward
from prime_ext.algorithms.estimators import RewardSource, compute_advantage
from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.implicit_reward import compute_implicit_values
from prime_ext.algorithms.process_shaping import ProcessShaping
from prime_ext.algorithms.returns import NOISE_MARGIN, normalize_by_batch_max
from prime_ext.algorithms.steps import StepSpans
from prime_ext.config.reward_settings import ScoredStepSettings, StepRewardSettings, chain_arguments
from prime_ext.config.settings import PrimeSettings
from prime_ext.step.rollouts import Rollouts, Steps, Turns
from prime_ext.step.scorer import ScoredRollouts

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
    """Advantages and returns ``(B, T)``, 0 outside the mask, and metrics."""

    advantage_BT: torch.Tensor
    return_BT: torch.Tensor
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
    """Return outcome, process and turn rewards with their coefficients.

    If a critic values outcome and process, their sum is one source. The process source is missing
    if its configured coefficient is 0; a closed gate (``weight`` 0) only sets its coefficient to 0.
    ``gamma`` and ``gae_lambda`` are ``algorithm.gamma`` and ``algorithm.lam``.
    """
    metrics = measure_steps(rollouts, scored.steps) | measure_turns(rollouts, rollouts.turns)
    # Fields that are the same for all sources.
    turns = rollouts.turns
    common: dict[str, Any] = {"form": settings.baseline, "gae_lambda": gae_lambda}
    common |= {
        "value_BT": rollouts.value_BT,
        "turn_end_BT": None if turns is None else turns.end_BT,
    }
    outcome = _outcome(rollouts, scored, settings, gamma, common)
    sources = {"outcome": outcome}
    if settings.paid_process is not None and scored.reward_BT is not None:
        process, process_metrics = _process(
            rollouts, scored, scored.reward_BT, weight, settings, common
        )
        metrics |= process_metrics
        if len(settings.critic_sources) < 2:
            sources["process"] = process
        elif process.coefficient != 0:
            # Discount, lambda and value of the two are equal.
            paid_BT = (
                outcome.coefficient * outcome.kept_reward()
                + process.coefficient * process.kept_reward()
            )
            both = replace(outcome, reward_BT=paid_BT, mask_BT=rollouts.mask_BT, coefficient=1.0)
            sources = {"outcome_and_process": both}
    if settings.turns is not None and turns is not None and turns.reward_BT is not None:
        # The agent loop has reported a reward for each turn.
        sources["turns"] = RewardSource(
            turns.reward_BT,
            turns.end_BT & rollouts.mask_BT.bool(),
            settings.turns.coefficient,
            settings.turns.discount,
            estimator=settings.turns.estimator,
            **common,
        )
    return Sources(sources, metrics)


def _outcome(
    rollouts: Rollouts,
    scored: ScoredRollouts,
    settings: PrimeSettings,
    gamma: float,
    common: dict[str, Any],
) -> RewardSource:
    outcome = settings.outcome
    mask_BT = rollouts.mask_BT
    if rollouts.advantage_BT is not None:
        # It is an advantage already: no sum over later tokens, no baseline.
        return RewardSource(
            rollouts.advantage_BT, mask_BT, outcome.coefficient, 0.0, estimator="reinforce"
        )
    if settings.outcome_reads_prm and scored.reward_BT is not None:
        common = {**common, "value_BT": compute_implicit_values(scored.reward_BT, mask_BT)}
    return outcome_source(
        rollouts.reward_BT,
        mask_BT,
        outcome.estimator,
        coefficient=outcome.coefficient,
        discount=gamma,
        **common,
    )


def build_shaping(settings: PrimeSettings) -> ProcessShaping:
    """Build the configured function from token rewards to process rewards."""
    process = settings.process
    if not isinstance(process, StepRewardSettings | ScoredStepSettings):
        return ProcessShaping()
    accumulation = process.accumulation
    score = StepScoreFunction()
    if isinstance(process, StepRewardSettings):
        score = StepScoreFunction(process.step_score, process.step_score_scale)
    return ProcessShaping(
        process.granularity,
        process.credit,
        score,
        ChainReward(**chain_arguments(accumulation, process.shaping)),
        "last_token" if accumulation is None else accumulation.reward_position,
    )


def _process(
    rollouts: Rollouts,
    scored: ScoredRollouts,
    reward_BT: torch.Tensor,
    weight: float,
    settings: PrimeSettings,
    common: dict[str, Any],
) -> tuple[RewardSource, dict[str, float]]:
    """Return the source with the token rewards ``reward_BT``, and its metrics."""
    process = settings.paid_process
    mask_BT = rollouts.mask_BT
    metrics = {}
    assert process is not None
    shaping = build_shaping(settings)
    spans = None if scored.steps is None else scored.steps.spans
    paid_BT, source_BT = shaping(reward_BT, mask_BT, spans, scored.score_BS)
    if rollouts.penalty_BT is not None:
        # As for an outcome: summed up for estimators that see a response's rewards as one.
        penalized = outcome_source(paid_BT + rollouts.penalty_BT, mask_BT, process.estimator)
        paid_BT = penalized.reward_BT
        source_BT = penalized.mask_BT
    if shaping.chain.accumulation != "none" and spans is not None:
        chain = shaping.chain_value(reward_BT, spans, scored.score_BS)
        rows_B = rollouts.valid_B
        parts = {"score": chain.score_B, "factor": chain.factor_B, "reward": chain.reward_B}
        metrics = {
            f"prime/chain/{name}": float(part_B[rows_B].mean()) for name, part_B in parts.items()
        }
        metrics["prime/chain/at_most_one_step"] = float((chain.count_B[rows_B] < 2).float().mean())
    metrics["prime/process/normalizer"] = 1.0
    if process.normalization == "batch_max":
        # The maximum is over the returns of all valid tokens, also of those without a reward.
        normalize = partial(normalize_by_batch_max, mask_BT=mask_BT, discount=process.discount)
        floor: torch.Tensor | float = 0.0
        if scored.noise > 0:
            draws = _shape_noise(shaping, scored.noise, mask_BT, spans)
            floor = NOISE_MARGIN * max(normalize(noise_BT)[1] for noise_BT in draws)
        paid_BT, normalizer = normalize(paid_BT, floor=floor)
        metrics["prime/process/normalizer"] = float(normalizer)
    coefficient = process.coefficient * weight
    source = RewardSource(
        paid_BT, source_BT, coefficient, process.discount, estimator=process.estimator, **common
    )
    return source, metrics


def _shape_noise(
    shaping: ProcessShaping, noise: float, mask_BT: torch.Tensor, spans: StepSpans | None
) -> Iterator[torch.Tensor]:
    """Yield the shaped rewards of simulated rounding noise minus those of zero scores, ``(B, T)``.

    There are several draws from a fixed seed: where one response outweighs all others, a single
    draw may be far too small.
    """
    generator = torch.Generator().manual_seed(0)
    without_BT, _ = shaping(torch.zeros_like(mask_BT), mask_BT, spans)
    for _ in range(4):
        noise_BT = noise * torch.randn(mask_BT.shape, generator=generator) * mask_BT
        yield shaping(noise_BT, mask_BT, spans)[0] - without_BT


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
    return Advantages(advantage_BT, return_BT, metrics)
