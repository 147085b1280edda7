# SPDX-License-Identifier: Apache-2.0
"""Estimators whose baseline is a value of the state before each token: a critic's, or the implicit PRM's own."""

import torch

from prime_ext.algorithms.returns import close_holes, closed_positions, has_holes, reopen_holes, return_to_go_of_kept
from prime_ext.algorithms.reward_source import RewardSource


def gae(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """Generalised advantage estimation (arXiv 1506.02438), the estimator of PPO.

    delta_t = r_t + discount * V_{t+1} - V_t and A_t = delta_t + discount * gae_lambda * A_{t+1}, where t + 1 is the
    next valid token: holes in the response are stepped over, and after the last token V is 0. The critic's target is
    A_t + V_t.
    """
    assert source.value_BT is not None  # checked by the registry
    reward_BT, mask_BT = source.kept_reward(), response_mask_BT.bool()
    value_BT = torch.where(mask_BT, source.value_BT.to(reward_BT.dtype), reward_BT.new_zeros(()))
    if not has_holes(mask_BT):
        return _gae_without_holes(reward_BT, value_BT, mask_BT, source)
    position_BT = closed_positions(mask_BT)
    reward_BT, value_BT = close_holes(reward_BT, position_BT), close_holes(value_BT, position_BT)
    token_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    packed_mask_BT = token_T[None, :] < mask_BT.sum(-1, keepdim=True)
    return reopen_holes(_gae_without_holes(reward_BT, value_BT, packed_mask_BT, source), position_BT)


def _gae_without_holes(
    reward_BT: torch.Tensor, value_BT: torch.Tensor, mask_BT: torch.Tensor, source: RewardSource
) -> torch.Tensor:
    """The recursion for rewards and values that are 0 outside the mask and valid tokens side by side."""
    delta_BT = reward_BT - value_BT
    delta_BT[:, :-1].add_(value_BT[:, 1:], alpha=source.discount)
    return return_to_go_of_kept(delta_BT, mask_BT, source.discount * source.gae_lambda)


def prm_value(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """R_t - v_t with the implicit PRM as the value function (PRIME, arXiv 2502.01456, section on value models).

    v_t is the sum of the process rewards of the tokens before t, see
    :func:`prime_ext.algorithms.process_reward.implicit_values`, and is given as ``source.value_BT``. It is a variant of
    the paper's ablation, weaker there than process rewards as returns.
    """
    assert source.value_BT is not None  # checked by the registry
    return_BT = return_to_go_of_kept(source.kept_reward(), response_mask_BT, source.discount)
    return torch.where(
        response_mask_BT.bool(), return_BT - source.value_BT.to(return_BT.dtype), return_BT.new_zeros(())
    )
