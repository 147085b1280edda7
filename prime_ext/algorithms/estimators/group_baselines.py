# SPDX-License-Identifier: Apache-2.0
"""Estimators whose baseline comes from the other rollouts of the prompt.

All of them reduce a response to m_j, the mean of its rewards over the source mask: the outcome itself for a source with
one reward per response, the per-token mean r(y_j) / |y_j| for process rewards (PRIME, arXiv 2502.01456, Eqs. 5 and 7).
A constant is subtracted from every reward of the source, and the return-to-go of what is left is the advantage. With
the discount 1 and one reward per response that is the reward minus its baseline at every token.

A source that pays at every token has its baseline accumulated too: the advantage of early tokens of long responses then
contains (remaining length) x (baseline), as it does in PRIME.
"""

from dataclasses import dataclass

import torch

from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.returns import kept, return_to_go
from prime_ext.algorithms.reward_source import RewardSource


@dataclass(frozen=True)
class _Summary:
    """The rewards of a source, 0 where it pays nothing, m_j of each response, and the groups of those that it pays."""

    kept_BT: torch.Tensor
    mean_B: torch.Tensor
    groups: PromptGroups

    @classmethod
    def of(cls, source: RewardSource, group_B: torch.Tensor) -> "_Summary":
        kept_BT, count_B = source.kept_reward(), source.mask_BT.bool().sum(-1, dtype=torch.int32)
        return cls(kept_BT, kept_BT.sum(-1) / count_B.clamp_min(1), PromptGroups.of(group_B, count_B > 0))

    def group_mean(self) -> torch.Tensor:
        """Mean of m_j over the group, 0 for a rollout alone in it."""
        return torch.where(self.groups.size_B == 1, 0.0, self.groups.mean(self.mean_B))

    def centred_return(
        self,
        source: RewardSource,
        response_mask_BT: torch.Tensor,
        baseline_B: torch.Tensor,
        scale_B: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return-to-go of (r - baseline) * scale at the tokens of the source; takes the rewards over."""
        part_B = self.groups.valid_B if source.keeps_singleton("keep") else self.groups.size_B > 1
        scale_B = part_B.to(self.mean_B.dtype) if scale_B is None else torch.where(part_B, scale_B, 0.0)
        centred_BT = self.kept_BT.sub_(baseline_B[:, None]).mul_(scale_B[:, None])
        centred_BT.mul_(source.mask_BT.to(centred_BT.dtype))
        return return_to_go(centred_BT, response_mask_BT, source.discount)


def rloo(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """REINFORCE leave-one-out (arXiv 2402.14740) in the two forms of PRIME (arXiv 2502.01456, Eq. 5), summed from t on.

    With n the size of the group, a reward becomes

    * ``paper`` (Eq. 5): r_it - sum_{j != i} m_j / (n - 1)
    * ``released`` (the code behind the published numbers): r_it * n / (n - 1) - sum_j m_j / (n - 1)

    Averaged over the source mask both are m_i - mean_{j != i} m_j, so they agree exactly for a source with one reward
    per response, such as the outcome. A rollout alone in its group receives 0, like verl's ``rloo_vectorized``; with
    ``singleton_group="keep"`` its own return, like verl's ``rloo``.
    """
    if source.form not in ("released", "paper"):
        raise ValueError(f"leave-one-out form must be 'released' or 'paper', got {source.form!r}")
    summary = _Summary.of(source, group_B)
    reward_BT, size_B = summary.kept_BT, summary.groups.size_B
    sum_B = summary.groups.sum(summary.mean_B)
    others_B = (size_B - 1).clamp_min(1).to(reward_BT.dtype)
    if source.form == "released":
        scale_B = size_B.to(reward_BT.dtype) / others_B
        centred_BT = (reward_BT * scale_B[:, None]).sub_((sum_B / others_B)[:, None])
    else:
        centred_BT = reward_BT - ((sum_B - summary.mean_B) / others_B)[:, None]
    alone_BT = reward_BT if source.keeps_singleton("zero") else torch.zeros_like(reward_BT)
    centred_BT = torch.where((size_B > 1)[:, None], centred_BT, alone_BT)
    return return_to_go(kept(centred_BT, source.mask_BT), response_mask_BT, source.discount)


def grpo(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """(r_t - mean_j m_j) / (std_j m_j + 1e-6), summed from t on (GRPO, arXiv 2402.03300; PRIME, Eq. 7).

    The standard deviation carries Bessel's correction, as in verl. A group of one has the mean 0 and the standard
    deviation 1; a group whose m_j are all equal receives 0. For process rewards the division is by the spread of
    per-token means, which can be far below that of single tokens: see :func:`grpo_pooled`.
    """
    summary = _Summary.of(source, group_B)
    std_B = torch.where(summary.groups.size_B == 1, 1.0, summary.groups.std(summary.mean_B))
    scale_B = torch.where(std_B > 0, 1.0 / (std_B + 1e-6), 0.0)
    return summary.centred_return(source, response_mask_BT, summary.group_mean(), scale_B)


def grpo_pooled(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """GRPO with process supervision (DeepSeekMath, arXiv 2402.03300, section 4.1.3).

    Mean and standard deviation are taken over all rewards of the group's responses pooled, one entry per step or
    token. The paper leaves the convention open; this is Bessel's with + 1e-6, as in :func:`grpo`. A pool of one entry
    has the mean 0 and the standard deviation 1, a pool of equal entries gives 0. The number of steps is unbounded:
    a long response with positive rewards gains from its length.
    """
    keep_BT, summary = source.mask_BT.bool(), _Summary.of(source, group_B)
    groups, kept_BT = summary.groups, summary.kept_BT
    count_B = groups.sum(keep_BT.sum(-1).to(kept_BT.dtype))
    # Equal rewards must not leave the rounding error of their mean behind, to be divided by 1e-6.
    first_B1 = kept_BT.gather(1, keep_BT.view(torch.uint8).argmax(-1, keepdim=True))
    differs_B = ((kept_BT != first_B1) & keep_BT).any(-1)
    equal_B = groups.constant(first_B1[:, 0]) & (groups.sum(differs_B.long()) == 0) & (count_B > 1)

    mean_B = groups.sum(kept_BT.sum(-1)) / count_B.clamp_min(1)
    baseline_B = torch.where(count_B == 1, 0.0, mean_B)
    square_B = ((kept_BT - mean_B[:, None]).square_() * source.mask_BT.to(kept_BT.dtype)).sum(-1)
    std_B = (groups.sum(square_B) / (count_B - 1).clamp_min(1)).sqrt()
    std_B = torch.where(count_B == 1, 1.0, std_B)
    scale_B = torch.where(equal_B, 0.0, 1.0 / (std_B + 1e-6))
    return summary.centred_return(source, response_mask_BT, baseline_B, scale_B)


def dr_grpo(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """r_t - mean_j m_j, summed from t on (Dr. GRPO, arXiv 2503.20783): GRPO without the division.

    In verl it is ``grpo`` with ``norm_adv_by_std_in_grpo=False``; the paper pairs it with the loss aggregation
    ``seq-mean-token-sum-norm``. The same advantage, whitened over the batch, is REINFORCE++'s baseline form (arXiv
    2501.03262), registered as ``reinforce_plus_plus_baseline``.
    """
    summary = _Summary.of(source, group_B)
    return summary.centred_return(source, response_mask_BT, summary.group_mean())


def opo(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """r_t - sum_j L_j m_j / sum_j L_j with L_j the response lengths, summed from t on (OPO, arXiv 2505.23585)."""
    summary = _Summary.of(source, group_B)
    groups = summary.groups
    length_B = response_mask_BT.bool().sum(-1).to(summary.mean_B.dtype)
    baseline_B = groups.sum(length_B * summary.mean_B) / groups.sum(length_B).clamp_min(1)
    return summary.centred_return(source, response_mask_BT, torch.where(groups.size_B == 1, 0.0, baseline_B))


def gpg(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """alpha * (r_t - mean_j m_j), summed from t on (GPG, arXiv 2504.02546).

    alpha = (responses in the batch) / max(1, responses whose reward is not 0), as verl computes it.
    """
    summary = _Summary.of(source, group_B)
    rewarded = torch.count_nonzero(summary.kept_BT.sum(-1)).clamp_min(1)
    alpha = summary.groups.valid_B.sum() / rewarded
    return summary.centred_return(
        source, response_mask_BT, summary.group_mean(), alpha.to(summary.mean_B.dtype).expand_as(summary.mean_B)
    )
