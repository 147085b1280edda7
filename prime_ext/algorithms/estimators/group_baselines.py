# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Estimators whose baseline comes from the other rollouts of the prompt.

All of them reduce a response to m_j, the mean of its rewards over the source mask: the outcome itself for a source with
one reward per response, the per-token mean r(y_j) / |y_j| for process rewards (PRIME, arXiv 2502.01456, Eqs. 5 and 7).
A constant is subtracted from every reward of the source, and the return-to-go of what is left is the advantage. With
the discount 1 and one reward per response that is the reward minus its baseline at every token.

A source that pays at every token has its baseline accumulated too: the advantage of early tokens of long responses then
contains (remaining length) x (baseline), as it does in PRIME.
"""

import torch

from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.leave_one_out import leave_one_out
from prime_ext.algorithms.returns import return_to_go
from prime_ext.algorithms.reward_source import RewardSource


def _centred_return(
    source: RewardSource,
    response_mask_BT: torch.Tensor,
    baseline_B: torch.Tensor,
    scale_B: torch.Tensor,
    takes_part_B: torch.Tensor,
) -> torch.Tensor:
    """Return-to-go of (r - baseline) * scale at the tokens of the source, 0 for rows that do not take part."""
    keep_BT = source.mask_BT.bool() & takes_part_B[:, None]
    centred_BT = (source.reward_BT - baseline_B[:, None]) * scale_B[:, None]
    centred_BT = torch.where(keep_BT, centred_BT, centred_BT.new_zeros(()))
    return return_to_go(centred_BT, response_mask_BT, source.discount)


def _means_and_groups(source: RewardSource, group_B: torch.Tensor) -> tuple[torch.Tensor, PromptGroups]:
    """m_j of each response, and the groups of the responses that have a reward at all."""
    keep_BT = source.mask_BT.bool()
    mean_B = source.kept_reward().sum(-1) / keep_BT.sum(-1).clamp_min(1)
    return mean_B, PromptGroups.of(group_B, keep_BT.any(-1))


def _takes_part(source: RewardSource, groups: PromptGroups, default: str) -> torch.Tensor:
    return groups.valid_B if source.keeps_lone(default) else groups.size_B > 1


def rloo(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """REINFORCE leave-one-out (arXiv 2402.14740) in the two forms of PRIME (Eq. 5), see :func:`leave_one_out`.

    A rollout alone in its group receives 0, like verl's ``rloo_vectorized``; with ``lone="keep"`` its own return, like
    verl's ``rloo``.
    """
    centred_BT = leave_one_out(source.reward_BT, source.mask_BT, group_B, source.form)
    if source.keeps_lone("zero"):
        alone_B = PromptGroups.of(group_B, source.mask_BT.bool().any(-1)).size_B == 1
        centred_BT = torch.where(alone_B[:, None], source.kept_reward(), centred_BT)
    return return_to_go(centred_BT, response_mask_BT, source.discount)


def grpo(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """(r_t - mean_j m_j) / (std_j m_j + 1e-6), summed from t on (GRPO, arXiv 2402.03300; PRIME, Eq. 7).

    The standard deviation carries Bessel's correction, as in verl. A group of one has the mean 0 and the standard
    deviation 1; a group whose m_j are all equal receives 0. For process rewards the division is by the spread of
    per-token means, which can be far below that of single tokens: see :func:`grpo_pooled`.
    """
    mean_B, groups = _means_and_groups(source, group_B)
    alone_B = groups.size_B == 1
    baseline_B = torch.where(alone_B, mean_B.new_zeros(()), groups.mean(mean_B))
    std_B = torch.where(alone_B, mean_B.new_ones(()), groups.std(mean_B))
    part_B = _takes_part(source, groups, "keep") & (std_B > 0)
    return _centred_return(source, response_mask_BT, baseline_B, 1.0 / (std_B + 1e-6), part_B)


def grpo_pooled(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """GRPO with process supervision (DeepSeekMath, arXiv 2402.03300, section 4.1.3).

    Mean and standard deviation are taken over all rewards of the group's responses pooled, one entry per step or
    token. The paper leaves the convention open; this is Bessel's with + 1e-6, as in :func:`grpo`. A pool of one entry
    has the mean 0 and the standard deviation 1, a pool of equal entries gives 0. The number of steps is unbounded:
    a long response with positive rewards gains from its length.
    """
    keep_BT, reward_BT = source.mask_BT.bool(), source.kept_reward()
    groups = PromptGroups.of(group_B, keep_BT.any(-1))
    count_B = groups.sum(keep_BT.sum(-1).to(reward_BT.dtype))
    mean_B = groups.sum(reward_BT.sum(-1)) / count_B.clamp_min(1)
    deviation_BT = torch.where(keep_BT, reward_BT - mean_B[:, None], reward_BT.new_zeros(()))
    std_B = (groups.sum((deviation_BT**2).sum(-1)) / (count_B - 1).clamp_min(1)).sqrt()
    single_B = count_B == 1
    mean_B = torch.where(single_B, mean_B.new_zeros(()), mean_B)
    std_B = torch.where(single_B, std_B.new_ones(()), std_B)
    # Equal rewards must not leave the rounding error of their mean behind, to be divided by 1e-6.
    low_B = torch.where(keep_BT, reward_BT, torch.inf).amin(-1)
    high_B = torch.where(keep_BT, reward_BT, -torch.inf).amax(-1)
    equal_B = groups.constant(low_B) & groups.constant(high_B) & (low_B == high_B) & ~single_B
    part_B = _takes_part(source, groups, "keep") & ~equal_B
    return _centred_return(source, response_mask_BT, mean_B, 1.0 / (std_B + 1e-6), part_B)


def dr_grpo(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """r_t - mean_j m_j, summed from t on (Dr. GRPO, arXiv 2503.20783): GRPO without the division.

    In verl it is ``grpo`` with ``norm_adv_by_std_in_grpo=False``; the paper pairs it with the loss aggregation
    ``seq-mean-token-sum-norm``. The same advantage, whitened over the batch, is REINFORCE++'s baseline form (arXiv
    2501.03262), registered as ``reinforce_plus_plus_baseline``.
    """
    mean_B, groups = _means_and_groups(source, group_B)
    baseline_B = torch.where(groups.size_B == 1, mean_B.new_zeros(()), groups.mean(mean_B))
    return _centred_return(
        source, response_mask_BT, baseline_B, torch.ones_like(mean_B), _takes_part(source, groups, "keep")
    )


def opo(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """r_t - sum_j L_j m_j / sum_j L_j with L_j the response lengths, summed from t on (OPO, arXiv 2505.23585)."""
    mean_B, groups = _means_and_groups(source, group_B)
    length_B = response_mask_BT.bool().sum(-1).to(mean_B.dtype)
    baseline_B = groups.sum(length_B * mean_B) / groups.sum(length_B).clamp_min(1)
    baseline_B = torch.where(groups.size_B == 1, mean_B.new_zeros(()), baseline_B)
    return _centred_return(
        source, response_mask_BT, baseline_B, torch.ones_like(mean_B), _takes_part(source, groups, "keep")
    )


def gpg(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """alpha * (r_t - mean_j m_j), summed from t on (GPG, arXiv 2504.02546).

    alpha = (responses in the batch) / max(1, responses whose reward is not 0), as verl computes it.
    """
    _, groups = _means_and_groups(source, group_B)
    rewarded = torch.count_nonzero(source.kept_reward().sum(-1)).clamp_min(1)
    return groups.valid_B.sum() / rewarded * dr_grpo(source, response_mask_BT, group_B)
