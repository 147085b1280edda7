# SPDX-License-Identifier: Apache-2.0
"""Advantages that are neither returns nor returns minus a baseline: segments, masked steps, steps of trajectories."""

import torch

from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.process_reward import prefix_values
from prime_ext.algorithms.steps import StepSpans


def masked_step_advantage(
    log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, group_B: torch.Tensor, beta: float
) -> torch.Tensor:
    """V_it minus its mean over the rollouts of the prompt that are still valid at position t (SPRO, arXiv 2507.01551).

    V_it = beta * (q_i1 + ... + q_it), for SPRO with the policy's own log-ratio to its reference. To be added to the
    outcome advantage of GRPO. 0 where no other rollout is left to compare with. Positions are those of the response, so
    a hole counts as a position.
    """
    value_BT, _ = prefix_values(log_ratio_BT, mask_BT, beta)
    valid_BT = mask_BT.bool()
    groups = PromptGroups.of(group_B, valid_BT.any(-1))
    alive_BT = groups.sum(valid_BT.to(value_BT.dtype))
    centred_BT = value_BT - groups.sum(value_BT) / alive_BT.clamp_min(1)
    return torch.where(valid_BT & (alive_BT > 1), centred_BT, centred_BT.new_zeros(()))


def segment_advantage(
    value_BC: torch.Tensor,
    cut_BC: torch.Tensor,
    cut_mask_BC: torch.Tensor,
    final_value_B: torch.Tensor,
    mask_BT: torch.Tensor,
) -> torch.Tensor:
    """Value at the end of a segment minus value at its start, for every token of the segment, ``(B, T)``.

    With cuts at low-probability tokens this is SPO-chain (arXiv 2505.23564), with cuts at the steps of the response
    VinePPO (arXiv 2410.01679, no reward between steps).

    Args:
        value_BC: value of the state before the token ``cut_BC``, estimated for example by rollouts from there.
        cut_BC: first token of each segment, ascending in each row.
        cut_mask_BC: cuts that exist, a prefix of the row. Tokens before the first cut receive 0, so give the prompt
            (position 0) as a cut to cover them; a row without cuts receives 0.
        final_value_B: value after the last token: the outcome.
        mask_BT: valid tokens.
    """
    mask_BC, n_tokens = cut_mask_BC.bool(), mask_BT.shape[1]
    kept_BC = torch.where(mask_BC, value_BC, value_BC.new_zeros(()))
    following_BC = torch.nn.functional.pad(kept_BC[:, 1:], (0, 1))
    last_BC = torch.arange(mask_BC.shape[1], device=mask_BC.device)[None, :] == mask_BC.sum(-1, keepdim=True) - 1
    rise_BC = torch.where(last_BC, final_value_B.to(kept_BC.dtype)[:, None], following_BC) - kept_BC
    starts_BT = torch.zeros(len(mask_BT), n_tokens + 1, dtype=torch.int64, device=mask_BT.device)
    starts_BT = starts_BT.scatter_add_(1, torch.where(mask_BC, cut_BC, n_tokens), mask_BC.long())[:, :-1]
    segment_BT = starts_BT.cumsum(-1) - 1
    taken_BT = rise_BC.gather(1, segment_BT.clamp_min(0))
    return torch.where(mask_BT.bool() & (segment_BT >= 0), taken_BT, taken_BT.new_zeros(()))


def probability_mask(probability_BT: torch.Tensor, mask_BT: torch.Tensor, threshold: float = 0.9) -> torch.Tensor:
    """Tokens the old policy was not sure of (SPO, arXiv 2505.23564): the only ones to be trained, ``(B, T)`` bool.

    A token at the threshold itself counts as sure. (In the released code it is in neither of two complementary tests.)
    """
    return mask_BT.bool() & (probability_BT < threshold)


def low_probability_cuts(
    probability_BT: torch.Tensor, mask_BT: torch.Tensor, threshold: float = 0.9, every: int = 5
) -> torch.Tensor:
    """Every ``every``-th token the old policy was not sure of starts a segment (SPO-chain), ``(B, T)`` bool.

    The first such token is the first cut.
    """
    candidate_BT = probability_mask(probability_BT, mask_BT, threshold)
    return candidate_BT & ((candidate_BT.cumsum(-1) - 1) % every == 0)


def vine_cuts(spans: StepSpans) -> tuple[torch.Tensor, torch.Tensor]:
    """First token of each step and the mask of steps, as cuts for :func:`segment_advantage`."""
    n_steps = spans.mask_BS.shape[1]
    is_first_BT = torch.ones_like(spans.step_BT, dtype=torch.bool)
    valid_BT = spans.step_BT >= 0
    # The highest step so far: a hole inside a step does not start it again.
    reached_BT = spans.step_BT.cummax(-1).values
    is_first_BT[:, 1:] = reached_BT[:, 1:] > reached_BT[:, :-1]
    is_first_BT &= valid_BT
    position_BT = torch.arange(valid_BT.shape[1], device=valid_BT.device).expand_as(spans.step_BT)
    cut_BS = torch.zeros(len(valid_BT), n_steps + 1, dtype=torch.int64, device=valid_BT.device)
    cut_BS = cut_BS.scatter_(1, torch.where(is_first_BT, spans.step_BT, n_steps), position_BT)[:, :-1]
    return torch.where(spans.mask_BS, cut_BS, 0), spans.mask_BS


def trajectory_step_advantage(
    step_reward_B: torch.Tensor, mask_BT: torch.Tensor, group_B: torch.Tensor, epsilon: float = 1e-6
) -> torch.Tensor:
    """Leave-one-out of step rewards over all steps of all trajectories of a task (iStar, arXiv 2509.19199), ``(B, T)``.

    A row is one step of a trajectory of several turns: its state is the prompt and its action the response. Rewards are
    first divided by the largest |reward| of the batch. To be added, with a weight, to the advantage of the trajectory's
    outcome. A task with a single step receives 0.

    The released code takes the first step of each trajectory only into the baseline, so that later steps are compared
    with first ones; here the baseline is over all other steps of the task.

    Args:
        step_reward_B: summed process reward of each step, beta * sum_t q_t.
        mask_BT: valid tokens; rows without any are padding.
        group_B: integer id of the task.
        epsilon: added to the divisor.
    """
    valid_B = mask_BT.bool().any(-1)
    kept_B = torch.where(valid_B, step_reward_B, step_reward_B.new_zeros(()))
    kept_B = kept_B / (kept_B.abs().max() + epsilon)
    groups = PromptGroups.of(group_B, valid_B)
    others_B = (groups.sum(kept_B) - kept_B) / (groups.size_B - 1).clamp_min(1)
    advantage_B = torch.where(groups.size_B > 1, kept_B - others_B, kept_B.new_zeros(()))
    return torch.where(mask_BT.bool(), advantage_B[:, None], kept_B.new_zeros(()))
