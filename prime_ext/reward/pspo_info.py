# SPDX-License-Identifier: Apache-2.0
"""What reward managers with step scores tell of a response beside its reward, and the metrics that are made of it.

verl takes means of the numbers over a validation set, and prime_ext's trainers over every step. So what is to be a
share is 0 or 1 here. Lists travel as JSON texts, of which verl makes no metrics.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from prime_ext.reward.chain_pricing import PricedChain
from prime_ext.reward.step_scoring import ScoredSteps

# Shares of responses by their number of steps, bounds included.
HISTOGRAM = {
    "steps_at_most_1": (0, 1),
    "steps_2": (2, 2),
    "steps_3_to_5": (3, 5),
    "steps_6_to_8": (6, 8),
    "steps_above_8": (9, None),
}
FAILURE = "reward_failure"
# Means over the responses that have a value.
MEANS = (
    "score",
    "acc",
    "step_score",
    "lowest_step_score",
    "chain_score",
    "chain_factor",
    "chain_reward",
    "outcome_reward",
    "contexts_cut",
    "steps_cut",
    "steps_timed_out",
    FAILURE,
    "scorer_seconds",
    *HISTOGRAM,
)
# Those of the scores, which PRIME logs as the PRM's.
MEANS_OF_SCORES = ("step_score", "lowest_step_score", "contexts_cut", "steps_cut", "scorer_seconds")
_LONGEST = 200


def step_info(scored: ScoredSteps) -> dict[str, Any]:
    """What the steps and their scores are; None where scores are missing."""
    count, scores = len(scored.cut.texts), scored.scores
    values = scores.scores if scores is not None else ()
    return {
        "n_steps": count,
        "n_tokens": scored.n_tokens,
        "steps_timed_out": float(scored.cut.timed_out),
        "step_ends": json.dumps(scored.cut.ends),
        **{name: float(low <= count and (high is None or count <= high)) for name, (low, high) in HISTOGRAM.items()},
        "step_scores": json.dumps(values),
        "step_score": sum(values) / len(values) if values else None,
        "lowest_step_score": min(values) if values else None,
        "contexts_cut": float(scores.contexts_cut) if scores is not None else None,
        "steps_cut": float(scores.steps_cut) if scores is not None else None,
        "scorer_seconds": scored.seconds,
    }


def price_info(priced: PricedChain | None) -> dict[str, Any]:
    """What the scores are worth; None where they are missing."""
    return {
        "step_rewards": json.dumps(priced.paid if priced is not None else ()),
        "chain_score": priced.score if priced is not None else None,
        "chain_factor": priced.factor if priced is not None else None,
        "chain_reward": priced.reward if priced is not None else None,
    }


def failure_info(reasons: Sequence[str]) -> dict[str, Any]:
    """Whether the response has no reward, and why."""
    return {FAILURE: float(bool(reasons)), "failure_detail": "; ".join(reasons)[:_LONGEST]}


def pspo_metrics(infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Metrics of the responses of a step: means over those that have a value.

    A response without a reward has no score, and one that the verifier could not judge no ``acc``, whatever number
    stands there for verl.
    """
    metrics: dict[str, float] = {}
    counts = [info["n_steps"] for info in infos]
    if not counts:
        return metrics
    metrics["pspo/n_steps/mean"] = sum(counts) / len(counts)
    metrics["pspo/n_steps/max"] = max(counts)
    for name in MEANS:
        missing = {"acc": "grader_failure", "score": FAILURE, "outcome_reward": FAILURE}.get(name)
        known = [info for info in infos if not (missing and info.get(missing))]
        if (mean := _mean(known, name)) is not None:
            metrics[f"pspo/{name}"] = mean
    return metrics


def score_metrics(infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Metrics of the scores of a step of PRIME: means over the responses that have a value."""
    means = {name: _mean(infos, name) for name in MEANS_OF_SCORES}
    return {f"prm/{name}": mean for name, mean in means.items() if mean is not None}


def _mean(infos: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [float(info[name]) for info in infos if info.get(name) is not None]
    return sum(values) / len(values) if values else None
