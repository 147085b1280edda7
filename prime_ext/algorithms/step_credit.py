# SPDX-License-Identifier: Apache-2.0
"""Credit assignment from step scores: how much of a response's reward each step receives.

Scores and rewards are ``(B, S)``, with the mask of steps a prefix of the row (see :class:`StepSpans`); rewards are 0
where there is no step, whatever the scores hold there.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from prime_ext.algorithms.groups import PromptGroups


def min_form(score_BS: torch.Tensor, step_mask_BS: torch.Tensor, temperature: float = 0.1) -> torch.Tensor:
    """r_k = w_k p_k with w = softmax(-p / temperature) over the steps of the response (PURE, arXiv 2504.15275).

    The rewards of a response sum to a soft minimum of its scores, the exact minimum as the temperature goes to 0, so
    that one good step cannot make up for a bad one. A row without steps receives 0.
    """
    mask_BS = step_mask_BS.bool()
    kept_BS = torch.where(mask_BS, score_BS, score_BS.new_zeros(()))
    return softmin_weights(kept_BS, mask_BS, temperature) * kept_BS


def softmin_weights(score_BS: torch.Tensor, step_mask_BS: torch.Tensor, temperature: float = 0.1) -> torch.Tensor:
    """w = softmax(-p / temperature) over the steps of each response, 0 where there is no step (PURE)."""
    mask_BS = step_mask_BS.bool()
    weight_BS = torch.where(mask_BS, -score_BS / temperature, -torch.inf).softmax(-1)
    return torch.where(mask_BS, weight_BS, weight_BS.new_zeros(()))


def strict_min_rewards(score_BS: torch.Tensor, step_mask_BS: torch.Tensor) -> torch.Tensor:
    """r_k = G_k - G_{k+1} with G_k the smallest score of the steps from k on (PURE's "strict" variant).

    Their undiscounted return-to-go is G_k, so that every estimator can follow. The original takes the running minimum
    on the token grid, where tokens that end no step hold 0, so that every return is at most 0; here they take no part.
    """
    mask_BS = step_mask_BS.bool()
    ahead_BS = torch.where(mask_BS, score_BS, torch.inf)
    lowest_BS = ahead_BS.flip(-1).cummin(-1).values.flip(-1)
    lowest_BS = torch.where(mask_BS, lowest_BS, lowest_BS.new_zeros(()))
    return lowest_BS - torch.nn.functional.pad(lowest_BS[:, 1:], (0, 1))


def clip_rewards(score_BS: torch.Tensor, step_mask_BS: torch.Tensor, threshold: float) -> torch.Tensor:
    """r_k = min(p_k - threshold, 0): only bad steps count, so repeating good ones pays nothing (arXiv 2410.15115)."""
    mask_BS = step_mask_BS.bool()
    return torch.where(mask_BS, (score_BS - threshold).clamp_max(0), score_BS.new_zeros(()))


def delta_rewards(score_BS: torch.Tensor, step_mask_BS: torch.Tensor) -> torch.Tensor:
    """r_k = p_k - p_{k+1}, p_{K-1} for the last but one step and 0 for the last (arXiv 2410.15115).

    The return-to-go of every step but the last is then exactly its own score: it is bounded, however many steps there
    are. The last step is left to the outcome; a response of one step receives 0.
    """
    mask_BS = step_mask_BS.bool()
    kept_BS = torch.where(mask_BS, score_BS, score_BS.new_zeros(()))
    last_B1 = mask_BS.sum(-1, keepdim=True) - 1
    step_S = torch.arange(mask_BS.shape[1], device=mask_BS.device)[None, :]
    counted_BS = torch.where(step_S < last_B1, kept_BS, kept_BS.new_zeros(()))
    next_BS = torch.nn.functional.pad(counted_BS[:, 1:], (0, 1))
    return counted_BS - next_BS


def clip_delta_rewards(score_BS: torch.Tensor, step_mask_BS: torch.Tensor, threshold: float) -> torch.Tensor:
    """:func:`clip_rewards`, then :func:`delta_rewards` on the result (arXiv 2410.15115)."""
    return delta_rewards(clip_rewards(score_BS, step_mask_BS, threshold), step_mask_BS)


@dataclass(frozen=True)
class StepCredit:
    """What a step's score pays, by name.

    Attributes:
        name: a key of :data:`CREDITS`.
        temperature: of ``min_form``.
        threshold: of ``clip`` and ``clip_delta``.
    """

    name: str = "sum"
    temperature: float = 0.1
    threshold: float = 0.0

    def rewards(self, score_BS: torch.Tensor, step_mask_BS: torch.Tensor) -> torch.Tensor:
        """Step rewards ``(B, S)``, 0 where there is no step."""
        return CREDITS[self.name](score_BS, step_mask_BS, self)

    def shares(self, score_BS: torch.Tensor, step_mask_BS: torch.Tensor) -> torch.Tensor:
        """Shares of the steps in one reward of the whole response, ``(B, S)``, that sum to 1 in rows with steps.

        Equal ones for ``sum``; for ``min_form`` softmax(-p / temperature), so that the worst step receives most of it.

        Raises:
            ValueError: another credit, which defines no shares.
        """
        mask_BS = step_mask_BS.bool()
        if self.name == "min_form":
            return softmin_weights(score_BS, mask_BS, self.temperature)
        if self.name != "sum":
            raise ValueError(f"the credit {self.name!r} has no shares of one reward; sum and min_form have")
        return mask_BS.to(score_BS.dtype) / mask_BS.sum(-1, keepdim=True).clamp_min(1)


def sum_rewards(score_BS: torch.Tensor, step_mask_BS: torch.Tensor) -> torch.Tensor:
    """r_k = p_k."""
    return torch.where(step_mask_BS.bool(), score_BS, score_BS.new_zeros(()))


CREDITS: dict[str, Callable[[torch.Tensor, torch.Tensor, StepCredit], torch.Tensor]] = {
    "sum": lambda score_BS, mask_BS, _: sum_rewards(score_BS, mask_BS),
    "min_form": lambda score_BS, mask_BS, credit: min_form(score_BS, mask_BS, credit.temperature),
    "strict_min": lambda score_BS, mask_BS, _: strict_min_rewards(score_BS, mask_BS),
    "clip": lambda score_BS, mask_BS, credit: clip_rewards(score_BS, mask_BS, credit.threshold),
    "delta": lambda score_BS, mask_BS, _: delta_rewards(score_BS, mask_BS),
    "clip_delta": lambda score_BS, mask_BS, credit: clip_delta_rewards(score_BS, mask_BS, credit.threshold),
}


def token_leave_one_out(
    reward_BS: torch.Tensor,
    step_mask_BS: torch.Tensor,
    tokens_BS: torch.Tensor,
    length_B: torch.Tensor,
    group_B: torch.Tensor,
) -> torch.Tensor:
    """r_ik - N_ik * (sum of the others' rewards) / (sum of the others' lengths): PURE's baseline per token.

    A baseline per step would favour few long steps; this one is proportional to the tokens of the step. Rows without a
    step belong to no group, and a rollout alone in its group has the baseline 0.

    Args:
        reward_BS: step rewards, for example of :func:`min_form`.
        step_mask_BS: whether the row has that step.
        tokens_BS: N, tokens of each step; the original leaves the separator out (``spans.length_BS - 1``).
        length_B: tokens of each response.
        group_B: integer id of the prompt.
    """
    mask_BS = step_mask_BS.bool()
    kept_BS = torch.where(mask_BS, reward_BS, reward_BS.new_zeros(()))
    groups = PromptGroups.of(group_B, mask_BS.any(-1))
    total_B, length_B = kept_BS.sum(-1), length_B.to(kept_BS.dtype)
    others_total_B = groups.sum(total_B) - total_B
    others_length_B = groups.sum(length_B) - length_B
    alone_B = (groups.size_B < 2) | (others_length_B <= 0)
    per_token_B = torch.where(alone_B, 0.0, others_total_B / torch.where(alone_B, 1.0, others_length_B))
    centred_BS = kept_BS - per_token_B[:, None] * tokens_BS.to(kept_BS.dtype)
    return torch.where(mask_BS, centred_BS, kept_BS.new_zeros(()))
