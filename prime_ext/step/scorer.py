# SPDX-License-Identifier: Apache-2.0
"""Source of the process rewards (``prime.process``): the protocol, and a step reward model."""

import json
from typing import Protocol

import torch

from prime_ext.algorithms.prm_accuracy import PairCount, count_pairs
from prime_ext.algorithms.process_shaping import ProcessShaping
from prime_ext.algorithms.steps import find_valid_ends, place_at_ends, spans_from_ends
from prime_ext.methods.rollouts import Rollouts, ScoredRollouts, Steps
from prime_ext.methods.store import reward_info
from prime_ext.reward.pspo_info import score_metrics


class Scorer(Protocol):
    """Source of process rewards: :class:`StepRewardModel`, or the PRMs of ``implicit_prm``."""

    def score_and_update(self, rollouts: Rollouts) -> ScoredRollouts:
        """Score rollouts; a trained scorer also learns from them."""


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


def measure_sums(rollouts: Rollouts, total_B: torch.Tensor) -> dict[str, float]:
    """Return statistics of responses' summed process rewards; ``total_B`` includes padding."""
    total_B = total_B[rollouts.valid_B]
    label_B = rollouts.label_B[rollouts.valid_B]
    if not len(total_B):
        return {}
    metrics = {"prm/reward_sum/mean": float(total_B.mean())}
    metrics["prm/reward_sum/std"] = float(total_B.std()) if len(total_B) > 1 else 0.0
    for name, rows_B in (("correct", label_B > 0.5), ("wrong", label_B <= 0.5)):
        if rows_B.any():
            metrics[f"prm/reward_sum/{name}"] = float(total_B[rows_B].mean())
    return metrics


def measure_pairs(
    rollouts: Rollouts, score_B: torch.Tensor, when: str, group_B: torch.Tensor | None = None
) -> tuple[PairCount, dict[str, float]]:
    """Count the pairs of a group that the scores order correctly; return them and metrics.

    ``when`` is ``before`` or ``after`` the update.
    """
    rows_B = rollouts.valid_B
    group_B = rollouts.group_B if group_B is None else group_B
    pairs = count_pairs(score_B[rows_B], rollouts.label_B[rows_B], group_B[rows_B])
    if pairs.accuracy is None:
        return pairs, {}
    return pairs, {f"prm/pair_accuracy/{when}_update": pairs.accuracy}
