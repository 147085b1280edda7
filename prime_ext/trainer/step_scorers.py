# SPDX-License-Identifier: Apache-2.0
"""The process rewards of a step reward model, whose scores came with the rewards (``prime.process.scorer``)."""

import json

import torch
from transfer_queue import KVBatchMeta

from prime_ext.algorithms.steps import valid_ends
from prime_ext.reward.pspo_info import score_metrics
from prime_ext.trainer.prime_step import PrimeStep
from prime_ext.trainer.reward_sources import shaping_of
from prime_ext.utils import transfer_queue as transfer


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
