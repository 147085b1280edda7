# SPDX-License-Identifier: Apache-2.0
"""PRIME's advantage: an estimate for the outcome and one for the process rewards, summed, then whitened."""

from dataclasses import replace
from functools import reduce
from typing import Any

import torch

from prime_ext.algorithms.estimators import ESTIMATORS, estimator_of
from prime_ext.algorithms.returns import kept, last_token_mask, whiten
from prime_ext.algorithms.reward_source import RewardSource

__all__ = ["RewardSource", "combine_sources", "last_token_mask", "outcome_source", "source_return"]


def outcome_source(
    reward_BT: torch.Tensor, response_mask_BT: torch.Tensor, estimator: str, **options: Any
) -> RewardSource:
    """The outcome as a source: a reward at the last token and, with a KL penalty in the reward, one at every token.

    What an estimator sees of it is what verl's estimator of that name sees: one that compares the rollouts of a prompt
    the sum over the response, as one reward at the last token; the others each reward where it is paid.

    Args:
        reward_BT: verl's token rewards ``(B, T)``; anything outside the response mask.
        response_mask_BT: valid tokens.
        estimator: name in ``prime_ext.algorithms.estimators.ESTIMATORS``.
        options: other fields of the source.
    """
    mask_BT = response_mask_BT
    if estimator in ESTIMATORS and ESTIMATORS[estimator].uses_groups:
        mask_BT = last_token_mask(response_mask_BT)
        reward_BT = kept(reward_BT, response_mask_BT).sum(-1, keepdim=True) * mask_BT
    return RewardSource(reward_BT, mask_BT, estimator=estimator, **options)


def source_return(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """Coefficient times the source's advantage, not whitened, ``(B, T)``.

    Raises:
        ValueError: see :func:`prime_ext.algorithms.estimators.estimator_of`.
    """
    estimator = estimator_of(source)
    if source.absent_B is not None:
        # Groups of their own: no other row is compared with them.
        beyond_B = int(group_B.max()) + 1 + torch.arange(len(group_B), device=group_B.device)
        group_B = torch.where(source.absent_B, beyond_B, group_B)
    column = source.as_column(response_mask_BT) if estimator.one_column and source.discount == 1.0 else None
    if column is None:
        advantage_BT = estimator.advantage(source, response_mask_BT, group_B)
    else:
        advantage_B1 = estimator.advantage(column, column.mask_BT, group_B)
        advantage_BT = advantage_B1 * response_mask_BT.to(advantage_B1.dtype)
    if source.absent_B is not None:
        advantage_BT = advantage_BT.masked_fill(source.absent_B[:, None], 0.0)
    if source.clip is not None:
        advantage_BT = advantage_BT.clamp(-source.clip, source.clip)
    return advantage_BT if source.coefficient == 1.0 else source.coefficient * advantage_BT


def combine_sources(
    sources: dict[str, RewardSource],
    response_mask_BT: torch.Tensor,
    group_B: torch.Tensor,
    whitening: bool | None = True,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Sum the advantages of all sources and whiten them over the valid tokens (PRIME, arXiv 2502.01456, Eq. 5).

    A source whose coefficient is 0 is left out, not multiplied by zero: its rewards may be anything, and the result is
    bit by bit that of the other sources alone.

    Args:
        sources: reward sources by name, each with an estimator of its own.
        response_mask_BT: valid tokens.
        group_B: integer id of the prompt of each row; any order, any group size.
        whitening: whether to whiten the sum. None follows the estimators: whiten if the definition of one of those
            that entered does, so that a single outcome source gives what the estimator's name promises.

    Returns:
        advantages ``(B, T)``, their sum ``(B, T)`` before whitening, and the part of each source that entered.
    """
    entering = {name: source for name, source in sources.items() if source.coefficient != 0.0}
    if not entering:
        raise ValueError("every reward source has the coefficient 0; at least one must count")
    # Once, because every step of an estimator asks for the masks as bool.
    response_mask_BT = response_mask_BT.bool()
    entering = {name: replace(source, mask_BT=source.mask_BT.bool()) for name, source in entering.items()}
    per_source = {name: source_return(source, response_mask_BT, group_B) for name, source in entering.items()}
    return_BT = reduce(torch.add, per_source.values())
    if whitening is None:
        whitening = any(estimator_of(source).whitens for source in entering.values())
    advantage_BT = whiten(return_BT, response_mask_BT) if whitening else return_BT * response_mask_BT
    return advantage_BT, return_BT, per_source
