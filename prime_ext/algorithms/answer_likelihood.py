# SPDX-License-Identifier: Apache-2.0
"""Process rewards from how likely the gold answer is after each step (IGPO, arXiv 2510.14967; TIPS, 2603.22293)."""

import torch

from prime_ext.algorithms.steps import StepSpans, place_at_ends


def answer_likelihood(log_prob_NT: torch.Tensor, mask_NT: torch.Tensor, per_token: bool) -> torch.Tensor:
    """P(gold | prefix) of each forced answer, ``(N,)``.

    Args:
        log_prob_NT: of the answer's tokens.
        mask_NT: 1 for them, 0 for padding.
        per_token: the geometric mean over the tokens in place of their product, so that long answers do not vanish.
    """
    sum_N = torch.where(mask_NT.bool(), log_prob_NT.float(), 0.0).sum(-1)
    return (sum_N / mask_NT.sum(-1).clamp_min(1) if per_token else sum_N).exp()


def potential_rewards(value_BS1: torch.Tensor, spans: StepSpans) -> torch.Tensor:
    """r_k = V_k - V_(k-1) at the last token of step k, 0 elsewhere, ``(B, T)``.

    The rewards of a response sum to V_K - V_0, and V_0 is the prompt's: a potential, which does not move the optimum
    (Ng, Harada and Russell, 1999) but for the V_K that the end has in place of 0.

    Args:
        value_BS1: V of the prompt alone, then after each step; anything behind the last step.
        spans: the steps.
    """
    return place_at_ends(torch.where(spans.mask_BS, value_BS1.diff(dim=-1), 0.0), spans)
