# SPDX-License-Identifier: Apache-2.0
"""Shaping and normalization that all methods of ``prime.process`` share."""

from collections.abc import Iterator
from functools import partial

import torch

from prime_ext.algorithms.advantage import outcome_source
from prime_ext.algorithms.process_shaping import ProcessShaping, center_wrong
from prime_ext.algorithms.returns import NOISE_MARGIN, normalize_by_batch_max
from prime_ext.algorithms.steps import StepSpans
from prime_ext.methods.rollouts import Rewards, Rollouts, ScoredRollouts
from prime_ext.methods.source_settings import ProcessSourceSettings


def shape_rewards(
    rollouts: Rollouts,
    scored: ScoredRollouts,
    settings: ProcessSourceSettings,
    shaping: ProcessShaping,
) -> Rewards | None:
    """Turn token rewards or scores of steps into the rewards of the process source.

    verl's KL penalty joins them where the outcome does not count.
    """
    reward_BT = scored.reward_BT
    if reward_BT is None:
        return None
    mask_BT = rollouts.mask_BT
    metrics = {}
    spans = None if scored.steps is None else scored.steps.spans
    paid_BT, source_BT = shaping(reward_BT, mask_BT, spans, scored.score_BS)
    if settings.center_wrong:
        paid_BT = center_wrong(paid_BT, source_BT, rollouts.label_B, rollouts.group_B)
    if rollouts.penalty_BT is not None:
        # As for an outcome: summed up for estimators that see a response's rewards as one.
        penalized = outcome_source(paid_BT + rollouts.penalty_BT, mask_BT, settings.estimator)
        paid_BT = penalized.reward_BT
        source_BT = penalized.mask_BT
    if shaping.chain.accumulation != "none" and spans is not None:
        chain = shaping.chain_value(reward_BT, spans, scored.score_BS)
        rows_B = rollouts.valid_B
        summands = {"score": chain.score_B, "factor": chain.factor_B, "reward": chain.reward_B}
        metrics = {
            f"prime/chain/{name}": float(value_B[rows_B].mean())
            for name, value_B in summands.items()
        }
        metrics["prime/chain/at_most_one_step"] = float((chain.count_B[rows_B] < 2).float().mean())
    metrics["prime/process/normalizer"] = 1.0
    if settings.normalization == "batch_max":
        # The maximum is over the returns of all valid tokens, also of those without a reward.
        normalize = partial(normalize_by_batch_max, mask_BT=mask_BT, discount=settings.discount)
        floor: torch.Tensor | float = 0.0
        if scored.noise > 0:
            draws = _shape_noise(shaping, scored.noise, mask_BT, spans)
            floor = NOISE_MARGIN * max(normalize(noise_BT)[1] for noise_BT in draws)
        paid_BT, normalizer = normalize(paid_BT, floor=floor)
        metrics["prime/process/normalizer"] = float(normalizer)
    return Rewards(paid_BT, source_BT, metrics)


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
