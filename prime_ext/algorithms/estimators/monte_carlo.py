# SPDX-License-Identifier: Apache-2.0
"""Estimators without a group: plain returns, and returns minus a baseline that the caller measured."""

import torch

from prime_ext.algorithms.returns import return_to_go_of_kept
from prime_ext.algorithms.reward_source import RewardSource


def reinforce(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """R_t = sum_{s >= t} discount^(s - t) r_s, no baseline (PRIME, arXiv 2502.01456, Eq. 8).

    The same return, whitened over the batch, is REINFORCE++ (arXiv 2501.03262), registered as
    ``reinforce_plus_plus``.
    """
    return return_to_go_of_kept(source.kept_reward(), response_mask_BT, source.discount)


def remax(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """R_t - b with b the reward of the greedy response to the same prompt (ReMax, arXiv 2310.10505).

    Padding rows of ``source.baseline_B`` may hold anything.
    """
    assert source.baseline_B is not None  # checked by the registry
    return_BT = reinforce(source, response_mask_BT, group_B)
    baseline_B1 = torch.where(response_mask_BT.bool().any(-1), source.baseline_B.to(return_BT.dtype), 0.0)[:, None]
    return return_BT.addcmul_(baseline_B1, response_mask_BT.to(return_BT.dtype), value=-1.0)


def position_mean(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """R_t minus the mean of R_t over all responses of the batch that have a token at that position.

    For rewards that are advantages already, such as :func:`policy_relative_rewards
    <prime_ext.algorithms.distillation.policy_relative_rewards>` with the discount 0: takes away what every response has
    at the position, whatever its prompt.
    """
    valid_BT = response_mask_BT.bool()
    return_BT = reinforce(source, response_mask_BT, group_B)
    mean_T = return_BT.sum(0) / valid_BT.sum(0).clamp_min(1)
    return torch.where(valid_BT, return_BT - mean_T, return_BT.new_zeros(()))
