# SPDX-License-Identifier: Apache-2.0
"""A step reward model as the scorer of a step; the reward manager has asked it before."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from prime_ext.algorithms.process_shaping import ProcessShaping
from prime_ext.algorithms.steps import find_valid_ends, place_at_ends, spans_from_ends
from prime_ext.methods.measures import measure_pairs, measure_sums
from prime_ext.methods.rollouts import Rollouts, ScoredRollouts, Steps
from prime_ext.methods.store import reward_info

# Key of the reward's extra info: 1 for a response that could not be scored.
FAILURE = "reward_failure"
# Means over the responses that have a value.
_MEANS = ("step_score", "lowest_step_score", "contexts_cut", "steps_cut", "scorer_seconds")


class StepRewardModel:
    """Step reward model, scored by the manager ``naive_with_step_scores``.

    ``shaping`` turns its scores into rewards.
    """

    def __init__(self, shaping: ProcessShaping):
        self.shaping = shaping

    def score_and_update(self, rollouts: Rollouts) -> ScoredRollouts:
        """Return the scores of the steps of the text, which end at tokens of the mask.

        Short steps may share a token; each counts. A response that could not be scored
        (``prime.verifier.on_failure=zero``) has the score 0 for every step. Raises RuntimeError:
        the steps are those of another output of the agent loop.
        """
        store = rollouts.store
        lengths = store.response_lengths
        mask_BT = rollouts.mask_BT
        valid_B = rollouts.valid_B
        rows = valid_B.nonzero()[:, 0].tolist()
        infos = [reward_info(store.keys[row], rollouts.extras[row]) for row in rows]
        n_steps = max([1, *(len(json.loads(info["step_ends"])) for info in infos)])
        score_BS = torch.zeros(len(mask_BT), n_steps)
        end_BS = torch.zeros(len(mask_BT), n_steps, dtype=torch.long)
        step_mask_BS = torch.zeros(len(mask_BT), n_steps, dtype=torch.bool)
        for row, info in zip(rows, infos, strict=True):
            if info["n_tokens"] != (n_tokens := lengths[row]):
                raise RuntimeError(
                    f"rollout {store.keys[row]} has {n_tokens} tokens, and the step scorer read"
                    f" {info['n_tokens']}, as with agent loops of several outputs; choose a variant"
                    " with an implicit PRM"
                )
            end_S = torch.tensor(json.loads(info["step_ends"]), dtype=torch.long)
            count = len(end_S)
            if count:
                end_BS[row, :count] = find_valid_ends(end_S, mask_BT[row])
                step_mask_BS[row, :count] = True
                score_BS[row, :count] = torch.tensor(json.loads(info["step_scores"]) or [0.0])
        spans = spans_from_ends(end_BS, step_mask_BS, mask_BT)
        steps = Steps(spans, int(sum(info["steps_timed_out"] for info in infos)))
        reward_BT = place_at_ends(score_BS, spans)
        # Sum of a response's rewards before normalization, which does not change the order.
        total_B = self.shaping(reward_BT, mask_BT, spans, score_BS)[0].sum(-1)
        # Differences below float32 rounding count as ties.
        pairs, accuracy = measure_pairs(rollouts, total_B.round(decimals=6), "before")
        metrics = score_metrics(infos) | measure_sums(rollouts, total_B) | accuracy
        return ScoredRollouts(reward_BT, score_BS, pairs=pairs, steps=steps, metrics=metrics)


def score_metrics(infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the metrics of step scores: means over the responses that have a value."""
    metrics = {}
    for name in _MEANS:
        values = [float(info[name]) for info in infos if info.get(name) is not None]
        if values:
            metrics[f"prm/{name}"] = sum(values) / len(values)
    return metrics
