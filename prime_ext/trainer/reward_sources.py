# SPDX-License-Identifier: Apache-2.0
"""The reward sources of a step, from its tensors and the settings."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from prime_ext.algorithms.accumulation import StepScore
from prime_ext.algorithms.advantage import RewardSource, outcome_source, source_return
from prime_ext.algorithms.chain_reward import ChainReward
from prime_ext.algorithms.estimators.step_based import low_probability_cuts
from prime_ext.algorithms.implicit_reward import implicit_values
from prime_ext.algorithms.normalization import NOISE_MARGIN, NORMALIZATIONS, OutcomeRelativeScale
from prime_ext.algorithms.process_shaping import ProcessShaping
from prime_ext.algorithms.returns import return_to_go
from prime_ext.algorithms.step_credit import StepCredit
from prime_ext.algorithms.steps import StepSpans
from prime_ext.config.chain_settings import chain_arguments
from prime_ext.config.settings import PrimeSettings
from prime_ext.trainer.step_tensors import StepTensors


def build_sources(
    step: StepTensors, gate: float, scale: OutcomeRelativeScale | None, metrics: dict
) -> dict[str, RewardSource]:
    """Outcome and process rewards with their coefficients, or their sum where one critic values both; turns' rewards.

    The process source is normalised over the global batch; it is missing when its coefficient is 0, and enters with the
    coefficient 0 when the gate is shut.
    """
    spans = step.spans()
    if step.turn_end_BT is not None and step.valid_B.any():
        _measure_turns(step, metrics)
    if spans is not None and step.valid_B.any():
        count_B = spans.count_B[step.valid_B].float()
        metrics.update({"prime/steps/mean": float(count_B.mean()), "prime/steps/max": float(count_B.max())})
        metrics["prime/steps/timed_out"] = step.steps_timed_out
    sources = _outcome_and_process(step, spans, gate, scale, metrics)
    if step.turn_reward_BT is not None:
        sources["turns"] = _turns(step)
    return sources


def _turns(step: StepTensors) -> RewardSource:
    """What the agent loop says that turns are worth."""
    settings = step.settings.turns
    assert step.turn_reward_BT is not None and step.turn_end_BT is not None
    return RewardSource(
        step.turn_reward_BT,
        step.turn_end_BT & step.mask_BT.bool(),
        settings.coefficient,
        settings.discount,
        step.settings.process.baseline,
        settings.estimator,
        singleton_group="zero",
        **_turn_fields(step),
    )


def _turn_fields(step: StepTensors) -> dict[str, Any]:
    """What estimators over turns read of a source."""
    weight = step.settings.turns.step_weight
    return {"turn_end_BT": step.turn_end_BT, "state_BT": step.state_BT, "step_weight": weight}


def _measure_turns(step: StepTensors, metrics: dict) -> None:
    assert step.turn_end_BT is not None
    end_BT = step.turn_end_BT & step.mask_BT.bool()
    count_B = end_BT.sum(-1)[step.valid_B].float()
    metrics.update({"prime/turns/mean": float(count_B.mean()), "prime/turns/max": float(count_B.max())})
    if step.turn_reward_BT is not None:
        metrics["prime/turns/reward"] = float((step.turn_reward_BT * end_BT).sum(-1)[step.valid_B].mean())
    if step.state_BT is not None:
        _, place_N, size_S = step.state_BT[end_BT].unique(return_inverse=True, return_counts=True)
        metrics["prime/turns/compared"] = float((size_S[place_N] > 1).float().mean())


def _outcome_and_process(
    step: StepTensors, spans: StepSpans | None, gate: float, scale: OutcomeRelativeScale | None, metrics: dict
) -> dict[str, RewardSource]:
    sources = {"outcome": _outcome(step, spans)}
    if step.settings.pays_process_rewards and step.process_reward_BT is not None:
        process = _process(step, spans, gate, metrics)
        if scale is not None:
            process = _relative(step, spans, sources["outcome"], process, scale, metrics)
        if step.settings.one_value_of_both:
            if process.coefficient == 0:
                return sources
            return {"outcome_and_process": _summed(step, sources["outcome"], process)}
        sources["process"] = process
    return sources


def critic_return(step: StepTensors, sources: dict[str, RewardSource]) -> torch.Tensor:
    """A_t + V_t of the source that the critic values, before its coefficient and whitening: the critic's target."""
    assert step.value_BT is not None
    (source,) = [source for source in sources.values() if source.estimator == "gae"]
    advantage_BT = source_return(replace(source, coefficient=1.0), step.mask_BT, step.group_B)
    value_BT = torch.where(step.mask_BT.bool(), step.value_BT, step.value_BT.new_zeros(()))
    return advantage_BT + value_BT


def _outcome(step: StepTensors, spans: StepSpans | None) -> RewardSource:
    settings = step.settings.outcome
    source = outcome_source(
        step.reward_BT,
        step.mask_BT,
        settings.estimator,
        coefficient=settings.coefficient,
        discount=settings.discount,
        form=step.settings.process.baseline,
        gae_lambda=settings.gae_lambda,
        value_BT=step.value_BT if settings.estimator == "gae" else None,
        baseline_B=step.greedy_B,
        singleton_group="zero",
        **_turn_fields(step),
    )
    if not step.settings.outcome_reads_prm:
        return source
    if step.process_reward_BT is None:
        raise RuntimeError(f"prime.outcome.estimator={settings.estimator} needs the PRM's scores, which were not set")
    value_BT = implicit_values(step.process_reward_BT, step.mask_BT)
    if settings.estimator == "prm_value":
        return replace(source, value_BT=value_BT)
    return replace(source, value_BT=value_BT.sigmoid(), cut_BT=_cuts(step, spans))


def _cuts(step: StepTensors, spans: StepSpans | None) -> torch.Tensor:
    """First tokens of segments; the response's own first token is added by the estimator."""
    segments = step.settings.segments
    if segments.cuts == "low_probability":
        assert step.old_log_prob_BT is not None
        return low_probability_cuts(step.old_log_prob_BT.exp(), step.mask_BT, segments.threshold, segments.every)
    assert spans is not None
    # The highest step so far: a hole inside a step does not start it again.
    reached_BT = spans.step_BT.cummax(-1).values
    cut_BT = torch.zeros_like(step.mask_BT, dtype=torch.bool)
    cut_BT[:, 1:] = reached_BT[:, 1:] > reached_BT[:, :-1]
    return cut_BT


def response_pay(step: StepTensors) -> torch.Tensor:
    """What the process rewards pay a response in all, ``(B,)``: with ``min_form`` a soft minimum of its step scores.

    A redistribution, which leaves the same to every response, and the normalisation, which changes no order, come
    later. The rewards of the credits ``delta`` and ``clip_delta`` are differences of scores and sum to the first one;
    there it is the mean of the returns, each of which is a step's own score.
    """
    assert step.process_reward_BT is not None
    shaping = replace(shaping_of(step.settings), redistribution="none")
    paid_BT, source_BT = shaping(step.process_reward_BT, step.mask_BT, step.spans())
    if step.settings.process.credit not in ("delta", "clip_delta"):
        return paid_BT.sum(-1)
    return_BT = return_to_go(paid_BT, step.mask_BT)
    return (return_BT * source_BT).sum(-1) / source_BT.sum(-1).clamp_min(1)


def shaping_of(settings: PrimeSettings) -> ProcessShaping:
    """From token rewards to what is paid, as configured."""
    process = settings.process
    return ProcessShaping(
        process.granularity,
        process.reward_lambda,
        StepCredit(process.credit, process.credit_temperature, process.credit_threshold or 0.0),
        process.redistribution,
        StepScore(process.step_score, process.step_score_scale),
        ChainReward(**chain_arguments(process.accumulation, process.shaping)),
        process.accumulation.reward_position,
    )


def _measure_chains(step: StepTensors, shaping: ProcessShaping, spans: StepSpans, metrics: dict) -> None:
    assert step.process_reward_BT is not None
    value = shaping.chain_value(step.process_reward_BT, spans)
    rows_B = step.valid_B
    parts = {"score": value.score_B, "factor": value.factor_B, "reward": value.reward_B}
    metrics.update({f"prime/chain/{name}": float(part_B[rows_B].mean()) for name, part_B in parts.items()})
    metrics["prime/chain/at_most_one_step"] = float((value.count_B[rows_B] < 2).float().mean())


def _process(step: StepTensors, spans: StepSpans | None, gate: float, metrics: dict) -> RewardSource:
    settings = step.settings.process
    assert step.process_reward_BT is not None
    shaping = shaping_of(step.settings)
    paid_BT, source_BT = shaping(step.process_reward_BT, step.mask_BT, spans)
    absent_B = None if step.scored_BT is None else ~step.scored_BT.any(-1)
    if absent_B is not None:
        source_BT = source_BT * ~absent_B[:, None]
    if settings.accumulates and spans is not None:
        _measure_chains(step, shaping, spans, metrics)
    if settings.normalization != "outcome_relative":
        # Prefix sums are those of the rewards; returns are counted at every token that they reach.
        over_BT = source_BT if settings.normalization == "prefix_std" else step.scored_mask_BT
        normalize = NORMALIZATIONS[settings.normalization]
        floor: torch.Tensor | float = 0.0
        if step.process_noise > 0 and settings.normalization != "none":
            drawn = (normalize(noise_BT, over_BT, settings.discount, 0.0)[1] for noise_BT in _paid_noise(step, spans))
            floor = NOISE_MARGIN * max(drawn)
        paid_BT, normalizer = normalize(paid_BT, over_BT, settings.discount, floor)
        metrics["prime/process/normalizer"] = float(normalizer)
    return RewardSource(
        paid_BT,
        source_BT,
        settings.coefficient * gate,
        settings.discount,
        settings.baseline,
        settings.estimator,
        settings.gae_lambda,
        value_BT=step.value_BT if settings.estimator == "gae" else None,
        singleton_group="zero",
        clip=settings.clip,
        absent_B=absent_B,
        **_turn_fields(step),
    )


def _paid_noise(step: StepTensors, spans: StepSpans | None) -> Iterator[torch.Tensor]:
    """What a PRM would pay, beyond what it pays without a signal, for rounding noise in every token; ``(B, T)`` each.

    Several draws, always the same ones: where one response outweighs all others, a single draw may be far too small.
    """
    shaping, generator = shaping_of(step.settings), torch.Generator().manual_seed(0)
    without_BT, _ = shaping(torch.zeros_like(step.mask_BT), step.mask_BT, spans)
    for _ in range(4):
        noise_BT = step.process_noise * torch.randn(step.mask_BT.shape, generator=generator) * step.mask_BT
        yield shaping(noise_BT, step.mask_BT, spans)[0] - without_BT


def _relative(
    step: StepTensors,
    spans: StepSpans | None,
    outcome: RewardSource,
    process: RewardSource,
    scale: OutcomeRelativeScale,
    metrics: dict,
) -> RewardSource:
    """The process source with its coefficient times the running factor."""
    spread = _spread(step, process)
    if spread > 0 and step.process_noise > 0:
        value_BT = None if process.value_BT is None else torch.zeros_like(process.value_BT)
        for noise_BT in _paid_noise(step, spans):
            noise = replace(process, reward_BT=noise_BT, value_BT=value_BT)
            spread = max(spread, NOISE_MARGIN * _spread(step, noise))
    factor = scale.update(spread, _spread(step, outcome))
    metrics["prime/process/relative_factor"] = factor
    return replace(process, coefficient=process.coefficient * factor)


def _spread(step: StepTensors, source: RewardSource) -> float:
    """Standard deviation of a source's advantage over the tokens, before its coefficient."""
    value_N = source_return(replace(source, coefficient=1.0), step.mask_BT, step.group_B)[step.mask_BT.bool()]
    return float(value_N.std()) if len(value_N) > 1 else 0.0


def _summed(step: StepTensors, outcome: RewardSource, process: RewardSource) -> RewardSource:
    """One source that pays what both do; discount, gae_lambda and value are the same for both."""
    reward_BT = outcome.coefficient * outcome.kept_reward() + process.coefficient * process.kept_reward()
    return replace(outcome, reward_BT=reward_BT, mask_BT=step.mask_BT, coefficient=1.0)
