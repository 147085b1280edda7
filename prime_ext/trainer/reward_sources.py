# SPDX-License-Identifier: Apache-2.0
"""From the tensors of a step to its reward sources, as configured, and on to advantages."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from transfer_queue import KVBatchMeta

from prime_ext.algorithms.accumulation import StepScore
from prime_ext.algorithms.advantage import combine_sources, outcome_source
from prime_ext.algorithms.chain_reward import ChainReward
from prime_ext.algorithms.estimators import RewardSource, compute_advantage
from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.implicit_reward import implicit_values
from prime_ext.algorithms.normalization import NOISE_MARGIN, NORMALIZATIONS
from prime_ext.algorithms.process_shaping import ProcessShaping
from prime_ext.algorithms.steps import StepSpans, valid_ends
from prime_ext.config.reward_settings import chain_arguments
from prime_ext.config.settings import PrimeSettings
from prime_ext.reward.pspo_info import score_metrics
from prime_ext.trainer.prime_step import PrimeStep
from prime_ext.utils import transfer_queue as transfer

logger = logging.getLogger(__name__)


class NotFinite(RuntimeError):
    """NaN or infinity where the policy would be trained on it; the message is one line."""


def advantages(step: PrimeStep, gate: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Combined advantages and returns, ``(B, T)`` each, 0 outside the mask.

    ``gate`` is a factor on the coefficient of the process rewards. Returns are the critic's targets where there is a
    critic, else the advantages before whitening. Raises NotFinite where an advantage is NaN or infinite.
    """
    settings, metrics = step.settings, step.metrics
    sources = build_sources(step, gate)
    advantage_BT, return_BT, per_source = combine_sources(sources, step.mask_BT, step.group_B, settings.whitening)
    if settings.critic_sources and step.value_BT is not None:
        # A_t + V_t of the source that the critic values, before its coefficient and whitening.
        (valued,) = [source for source in sources.values() if source.estimator == "gae"]
        value_BT = torch.where(step.mask_BT.bool(), step.value_BT, step.value_BT.new_zeros(()))
        return_BT = compute_advantage(valued, step.mask_BT, step.group_B) + value_BT
    valid_BT = step.mask_BT.bool()
    if not advantage_BT[valid_BT].isfinite().all():
        # verl would skip the update of the policy, of this step and most likely of all that follow.
        which = [name for name, value_BT in per_source.items() if not value_BT[valid_BT].isfinite().all()]
        raise NotFinite(
            f"the advantages of this step are not finite because of {', '.join(which) or 'their sum'} (prm/loss: "
            f"{metrics.get('prm/loss')}); nothing of this step was saved. Look at prm/grad_norm of the steps before, "
            f"lower prm.optim.lr, check the weights of prm.model.path"
        )
    for name, value_BT in per_source.items():
        metrics[f"prime/{name}/return_std"] = float(value_BT[valid_BT].std())
    if {"outcome", "process"} <= per_source.keys() and metrics["prime/outcome/return_std"] > 0:
        ratio = metrics["prime/process/return_std"] / metrics["prime/outcome/return_std"]
        metrics["prime/process/return_std_over_outcome"] = ratio
    alone = int((PromptGroups.of(step.group_B, step.valid_B).size_B == 1).sum())
    metrics["prime/rollouts_without_baseline"] = alone
    if alone:
        logger.warning("%d rollouts are alone in their group: no baseline, no advantage", alone)
    return advantage_BT, return_BT


# ---- sources ---------------------------------------------------------------------------------------------------


def build_sources(step: PrimeStep, gate: float) -> dict[str, RewardSource]:
    """Outcome, process and turn rewards with their coefficients; one sum where one critic values the first two.

    The process source is missing when its coefficient is 0, and has the coefficient 0 when the gate is shut.
    """
    spans = step.spans()
    if step.turn_end_BT is not None and step.valid_B.any():
        _measure_turns(step)
    if spans is not None and step.valid_B.any():
        count_B = spans.count_B[step.valid_B].float()
        step.metrics.update({"prime/steps/mean": float(count_B.mean()), "prime/steps/max": float(count_B.max())})
        step.metrics["prime/steps/timed_out"] = step.steps_timed_out
    sources = {"outcome": _outcome(step)}
    if step.settings.pays_process_rewards and step.process_reward_BT is not None:
        process = _process(step, spans, gate)
        if not step.settings.one_value_of_both:
            sources["process"] = process
        elif process.coefficient != 0:
            # One source that pays what both do; discount, lambda and value are the same for both.
            outcome = sources["outcome"]
            paid_BT = outcome.coefficient * outcome.kept_reward() + process.coefficient * process.kept_reward()
            both = replace(outcome, reward_BT=paid_BT, mask_BT=step.mask_BT, coefficient=1.0)
            sources = {"outcome_and_process": both}
    if step.turn_reward_BT is not None:
        sources["turns"] = _turns(step)
    return sources


def _common(step: PrimeStep) -> dict[str, Any]:
    """What is the same for all sources."""
    return {
        "form": step.settings.process.baseline,
        "gae_lambda": step.lam,
        "value_BT": step.value_BT,
        "turn_end_BT": step.turn_end_BT,
    }


def _turns(step: PrimeStep) -> RewardSource:
    """What the agent loop says that turns are worth."""
    settings = step.settings.turns
    assert step.turn_reward_BT is not None and step.turn_end_BT is not None
    return RewardSource(
        step.turn_reward_BT,
        step.turn_end_BT & step.mask_BT.bool(),
        settings.coefficient,
        settings.discount,
        estimator=settings.estimator,
        **_common(step),
    )


def _measure_turns(step: PrimeStep) -> None:
    assert step.turn_end_BT is not None
    end_BT = step.turn_end_BT & step.mask_BT.bool()
    count_B = end_BT.sum(-1)[step.valid_B].float()
    step.metrics.update({"prime/turns/mean": float(count_B.mean()), "prime/turns/max": float(count_B.max())})
    if step.turn_reward_BT is not None:
        step.metrics["prime/turns/reward"] = float((step.turn_reward_BT * end_BT).sum(-1)[step.valid_B].mean())


def _outcome(step: PrimeStep) -> RewardSource:
    settings = step.settings.outcome
    if step.verl_advantage_BT is not None:
        # An advantage already: what it is worth at a token is paid there, and nothing is summed or subtracted.
        return RewardSource(
            step.verl_advantage_BT, step.mask_BT, settings.coefficient, discount=0.0, estimator="reinforce"
        )
    source = outcome_source(
        step.reward_BT,
        step.mask_BT,
        settings.estimator,
        coefficient=settings.coefficient,
        discount=step.gamma,
        baseline_B=step.greedy_B,
        **_common(step),
    )
    if not step.settings.outcome_reads_prm:
        return source
    assert step.process_reward_BT is not None
    return replace(source, value_BT=implicit_values(step.process_reward_BT, step.mask_BT))


def shaping_of(settings: PrimeSettings) -> ProcessShaping:
    """From token rewards to what is paid, as configured."""
    process = settings.process
    return ProcessShaping(
        process.granularity,
        process.credit,
        StepScore(process.step_score, process.step_score_scale),
        ChainReward(**chain_arguments(process.accumulation, process.shaping)),
        process.accumulation.reward_position,
    )


def _process(step: PrimeStep, spans: StepSpans | None, gate: float) -> RewardSource:
    settings = step.settings.process
    assert step.process_reward_BT is not None
    shaping = shaping_of(step.settings)
    paid_BT, source_BT = shaping(step.process_reward_BT, step.mask_BT, spans)
    if settings.accumulates and spans is not None:
        chain, rows_B = shaping.chain_value(step.process_reward_BT, spans), step.valid_B
        parts = {"score": chain.score_B, "factor": chain.factor_B, "reward": chain.reward_B}
        step.metrics.update({f"prime/chain/{name}": float(part_B[rows_B].mean()) for name, part_B in parts.items()})
        step.metrics["prime/chain/at_most_one_step"] = float((chain.count_B[rows_B] < 2).float().mean())
    # Returns are counted at every token that they reach.
    normalize, over_BT = NORMALIZATIONS[settings.normalization], step.mask_BT
    floor: torch.Tensor | float = 0.0
    if step.process_noise > 0 and settings.normalization != "none":
        drawn = (normalize(noise_BT, over_BT, settings.discount, 0.0)[1] for noise_BT in _paid_noise(step, spans))
        floor = NOISE_MARGIN * max(drawn)
    paid_BT, normalizer = normalize(paid_BT, over_BT, settings.discount, floor)
    step.metrics["prime/process/normalizer"] = float(normalizer)
    return RewardSource(
        paid_BT,
        source_BT,
        settings.coefficient * gate,
        settings.discount,
        estimator=settings.estimator,
        **_common(step),
    )


def _paid_noise(step: PrimeStep, spans: StepSpans | None) -> Iterator[torch.Tensor]:
    """What a PRM would pay, beyond what it pays without a signal, for rounding noise in every token; ``(B, T)`` each.

    Several draws, always the same ones: where one response outweighs all others, a single draw may be far too small.
    """
    shaping, generator = shaping_of(step.settings), torch.Generator().manual_seed(0)
    without_BT, _ = shaping(torch.zeros_like(step.mask_BT), step.mask_BT, spans)
    for _ in range(4):
        noise_BT = step.process_noise * torch.randn(step.mask_BT.shape, generator=generator) * step.mask_BT
        yield shaping(noise_BT, step.mask_BT, spans)[0] - without_BT


# ---- a step reward model, whose scores came with the rewards ------------------------------------------------------


def step_scorer(step: PrimeStep, batch: KVBatchMeta) -> KVBatchMeta:
    """Read the scores that the manager ``naive_with_step_scores`` returned with the rewards.

    The score of a step is put at its last token in the mask; steps that share one are one, with the lowest of their
    scores. A response that could not be scored (``prime.verifier.on_failure=zero``) has the score 0 for every step.

    Raises:
        RuntimeError: the steps are those of another output of the agent loop.
    """
    rows = step.valid_B.nonzero()[:, 0].tolist()
    infos = transfer.fetch_reward_infos([batch.keys[row] for row in rows], batch.partition_id)
    reward_BT = torch.zeros_like(step.mask_BT)
    step.boundary_BT = torch.zeros_like(step.mask_BT, dtype=torch.bool)
    for row, info in zip(rows, infos, strict=True):
        if info["n_tokens"] != (n_tokens := batch.tags[row]["response_len"]):
            raise RuntimeError(
                f"rollout {batch.keys[row]} has {n_tokens} tokens, and the step scorer read {info['n_tokens']}, as "
                f"with agent loops of several outputs; use prime.process.scorer=implicit_prm"
            )
        end_S = torch.tensor(json.loads(info["step_ends"]), dtype=torch.long)
        score_S = torch.tensor(json.loads(info["step_scores"]) or [0.0] * len(end_S))
        if len(end_S):
            token_S = valid_ends(end_S, step.mask_BT[row])
            reward_BT[row].scatter_reduce_(0, token_S, score_S, "amin", include_self=False)
            step.boundary_BT[row, token_S] = True
    step.steps_timed_out = int(sum(info["steps_timed_out"] for info in infos))
    step.metrics.update(score_metrics(infos))
    step.process_reward_BT = reward_BT
    pay_B = response_pay(step)
    step.measure_sums(pay_B)
    # Differences below float32 rounding count as ties.
    step.measure_pairs(pay_B.round(decimals=6), "before")
    return batch


def response_pay(step: PrimeStep) -> torch.Tensor:
    """Compute what the process rewards pay a response in all, ``(B,)``, before normalization, which keeps the order."""
    assert step.process_reward_BT is not None
    paid_BT, _ = shaping_of(step.settings)(step.process_reward_BT, step.mask_BT, step.spans())
    return paid_BT.sum(-1)
