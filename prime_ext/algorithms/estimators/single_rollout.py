# SPDX-License-Identifier: Apache-2.0
"""Estimators that compare no rollouts of a prompt: plain returns, and returns minus a value or measured baseline."""

import torch

from prime_ext.algorithms.returns import following, kept, return_to_go
from prime_ext.algorithms.reward_source import RewardSource


def reinforce(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """R_t = sum_{s >= t} discount^(s - t) r_s, no baseline (PRIME, arXiv 2502.01456, Eq. 8).

    The same return, whitened over the batch, is REINFORCE++ (arXiv 2501.03262), registered as
    ``reinforce_plus_plus``.
    """
    return return_to_go(source.kept_reward(), response_mask_BT, source.discount)


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
    return kept(return_BT - mean_T, valid_BT)


def gae(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """Generalised advantage estimation (arXiv 1506.02438), the estimator of PPO.

    delta_t = r_t + discount * V_{t+1} - V_t and A_t = delta_t + discount * gae_lambda * A_{t+1}, where t + 1 is the
    next valid token: holes in the response are stepped over, and after the last token V is 0. The critic's target is
    A_t + V_t.
    """
    assert source.value_BT is not None  # checked by the registry
    reward_BT = source.kept_reward()
    value_BT = kept(source.value_BT.to(reward_BT.dtype), response_mask_BT)
    next_BT = torch.nn.functional.pad(value_BT, (0, 1)).gather(1, following(response_mask_BT))
    delta_BT = (reward_BT - value_BT).add_(next_BT, alpha=source.discount)
    return return_to_go(delta_BT, response_mask_BT, source.discount * source.gae_lambda)


def prm_value(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """R_t - v_t with the implicit PRM as the value function (PRIME, arXiv 2502.01456, section on value models).

    v_t is the sum of the process rewards of the tokens before t, see
    :func:`prime_ext.algorithms.implicit_reward.implicit_values`, and is given as ``source.value_BT``. It is a variant
    of the paper's ablation, weaker there than process rewards as returns.
    """
    assert source.value_BT is not None  # checked by the registry
    return_BT = reinforce(source, response_mask_BT, group_B)
    return kept(return_BT - source.value_BT.to(return_BT.dtype), response_mask_BT)
