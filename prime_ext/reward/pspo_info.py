# SPDX-License-Identifier: Apache-2.0
"""Metrics of the extra info that reward managers with step scores return."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FAILURE = "reward_failure"
# Means over the responses that have a value; PRIME logs those of scores as the PRM's.
MEANS_OF_SCORES = ("step_score", "lowest_step_score", "contexts_cut", "steps_cut", "scorer_seconds")
MEANS = (
    "score",
    "acc",
    FAILURE,
    *MEANS_OF_SCORES,
    "chain_score",
    "chain_factor",
    "steps_timed_out",
)
# A response with such a failure has no value; the number there is a placeholder for verl.
_UNLESS = {"acc": "grader_failure", "score": FAILURE}


def pspo_metrics(infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the metrics of PSPO: means over the responses that have a value."""
    counts = [info["n_steps"] for info in infos]
    if not counts:
        return {}
    metrics = {"pspo/n_steps/mean": sum(counts) / len(counts), "pspo/n_steps/max": max(counts)}
    return {**metrics, **{f"pspo/{name}": mean for name, mean in _means(infos, MEANS)}}


def score_metrics(infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the metrics of step scores in PRIME: means over the responses that have a value."""
    return {f"prm/{name}": mean for name, mean in _means(infos, MEANS_OF_SCORES)}


def _means(infos: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[tuple[str, float]]:
    for name in names:
        known = [info for info in infos if not info.get(_UNLESS.get(name, ""))]
        values = [float(info[name]) for info in known if info.get(name) is not None]
        if values:
            yield name, sum(values) / len(values)
