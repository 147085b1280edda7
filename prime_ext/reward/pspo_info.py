# SPDX-License-Identifier: Apache-2.0
"""What the reward manager ``pspo_wrs`` tells of a response beside its reward, and the metrics that are made of it.

verl takes means of the numbers over a validation set, and prime_ext's trainers over every step. So what is to be a
share is 0 or 1 here. Lists travel as JSON texts, of which verl makes no metrics.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from prime_ext.reward.chain_pricing import PricedChain
from prime_ext.step_rm.response_cut import Cut
from prime_ext.step_rm.scorers.protocol import StepScores

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
_LONGEST = 200


def step_info(cut: Cut, n_tokens: int) -> dict[str, Any]:
    """What is known of a response before it is scored."""
    count = len(cut.texts)
    return {
        "n_steps": count,
        "n_tokens": n_tokens,
        "steps_timed_out": float(cut.timed_out),
        "step_ends": json.dumps(cut.ends),
        **{name: float(low <= count and (high is None or count <= high)) for name, (low, high) in HISTOGRAM.items()},
    }


def score_info(scores: StepScores | None, priced: PricedChain | None, seconds: float) -> dict[str, Any]:
    """What the scores are and what they are worth; None where they are missing."""
    values = scores.scores if scores is not None else ()
    return {
        "step_scores": json.dumps([round(value, 6) for value in values]),
        "step_rewards": json.dumps(priced.paid if priced is not None else ()),
        "step_score": sum(values) / len(values) if values else None,
        "lowest_step_score": min(values) if values else None,
        "contexts_cut": float(scores.contexts_cut) if scores is not None else None,
        "steps_cut": float(scores.steps_cut) if scores is not None else None,
        "chain_score": priced.score if priced is not None else None,
        "chain_factor": priced.factor if priced is not None else None,
        "chain_reward": priced.reward if priced is not None else None,
        "scorer_seconds": seconds,
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
        values = [float(info[name]) for info in known if info.get(name) is not None]
        if values:
            metrics[f"pspo/{name}"] = sum(values) / len(values)
    return metrics
