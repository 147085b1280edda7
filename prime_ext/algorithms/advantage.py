# SPDX-License-Identifier: Apache-2.0
"""PRIME's advantage: estimates for the outcome and for the process rewards, summed and whitened."""

from functools import reduce
from typing import Any

import torch

from prime_ext import names
from prime_ext.algorithms.estimators import RewardSource, compute_advantage
from prime_ext.algorithms.returns import apply_mask, mark_last_token, whiten


def outcome_source(
    reward_BT: torch.Tensor, response_mask_BT: torch.Tensor, estimator: str, **options: Any
) -> RewardSource:
    """Build the outcome's source from verl's token rewards ``(B, T)``.

    Values outside of the mask are ignored. As in verl, an estimator that compares responses gets
    the sum of a response's rewards, KL penalties included, at its last token. Any other estimator
    gets the reward of each token. ``options`` are further fields of the source.
    """
    mask_BT = response_mask_BT
    if names.ESTIMATORS[estimator].sums_response:
        mask_BT = mark_last_token(response_mask_BT)
        reward_BT = apply_mask(reward_BT, response_mask_BT).sum(-1, keepdim=True) * mask_BT
    return RewardSource(reward_BT, mask_BT, estimator=estimator, **options)


def combine_sources(
    sources: dict[str, RewardSource],
    response_mask_BT: torch.Tensor,
    group_B: torch.Tensor,
    whitening: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Sum the advantages of all sources and whiten them over the valid tokens.

    This is PRIME (arXiv 2502.01456), Eq. 5. A source with the coefficient 0 is left out, so the
    result equals that of the other sources bit for bit.

    ``group_B`` are integer ids of prompts, in any order, with groups of any size.

    Returns:
        advantages ``(B, T)``, their sum ``(B, T)`` before whitening, and the summands by source.

    Raises:
        ValueError: every coefficient is 0; see also
            :func:`prime_ext.algorithms.estimators.compute_advantage`.
    """
    entering = {name: source for name, source in sources.items() if source.coefficient != 0.0}
    if not entering:
        raise ValueError("every reward source has the coefficient 0; at least one must count")
    per_source = {
        name: source.coefficient * compute_advantage(source, response_mask_BT, group_B)
        for name, source in entering.items()
    }
    return_BT = reduce(torch.add, per_source.values())
    if whitening:
        advantage_BT = whiten(return_BT, response_mask_BT)
    else:
        advantage_BT = return_BT * response_mask_BT
    return advantage_BT, return_BT, per_source
