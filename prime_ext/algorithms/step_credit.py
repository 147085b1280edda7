# SPDX-License-Identifier: Apache-2.0
"""Credit assignment from step scores: how much of a response's reward each step receives.

Scores and rewards are ``(B, S)``, with the mask of steps a prefix of the row (see :class:`StepSpans`). The rules here
are given scores that are 0 where there is no step; :class:`StepCredit` sees to that, and to rewards that are 0 there.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from prime_ext.algorithms.returns import kept


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
        """Step rewards ``(B, S)``, 0 where there is no step, whatever the scores hold there."""
        return kept(CREDITS[self.name](kept(score_BS, step_mask_BS), step_mask_BS.bool(), self), step_mask_BS)

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


def softmin_weights(score_BS: torch.Tensor, mask_BS: torch.Tensor, temperature: float) -> torch.Tensor:
    """w = softmax(-p / temperature) over the steps of each response, 0 where there is no step (PURE)."""
    return kept(torch.where(mask_BS, -score_BS / temperature, -torch.inf).softmax(-1), mask_BS)


def min_form(score_BS: torch.Tensor, mask_BS: torch.Tensor, credit: StepCredit) -> torch.Tensor:
    """r_k = w_k p_k with w = softmax(-p / temperature) over the steps of the response (PURE, arXiv 2504.15275).

    The rewards of a response sum to a soft minimum of its scores, the exact minimum as the temperature goes to 0, so
    that one good step cannot make up for a bad one.
    """
    return softmin_weights(score_BS, mask_BS, credit.temperature) * score_BS


def strict_min(score_BS: torch.Tensor, mask_BS: torch.Tensor, credit: StepCredit) -> torch.Tensor:
    """r_k = G_k - G_{k+1} with G_k the smallest score of the steps from k on (PURE's "strict" variant).

    Their undiscounted return-to-go is G_k, so that every estimator can follow. The original takes the running minimum
    on the token grid, where tokens that end no step hold 0, so that every return is at most 0; here they take no part.
    """
    lowest_BS = torch.where(mask_BS, score_BS, torch.inf).flip(-1).cummin(-1).values.flip(-1)
    return _differences(kept(lowest_BS, mask_BS))


def clip(score_BS: torch.Tensor, mask_BS: torch.Tensor, credit: StepCredit) -> torch.Tensor:
    """r_k = min(p_k - threshold, 0): only bad steps count, so repeating good ones pays nothing (arXiv 2410.15115)."""
    return (score_BS - credit.threshold).clamp_max(0)


def delta(score_BS: torch.Tensor, mask_BS: torch.Tensor, credit: StepCredit) -> torch.Tensor:
    """r_k = p_k - p_{k+1}, p_{K-1} for the last but one step and 0 for the last (arXiv 2410.15115).

    The return-to-go of every step but the last is then exactly its own score: it is bounded, however many steps there
    are. The last step is left to the outcome; a response of one step receives 0.
    """
    goes_on_BS = torch.nn.functional.pad(mask_BS[:, 1:], (0, 1))
    return _differences(kept(score_BS, goes_on_BS))


def _differences(value_BS: torch.Tensor) -> torch.Tensor:
    return value_BS - torch.nn.functional.pad(value_BS[:, 1:], (0, 1))


CREDITS: dict[str, Callable[[torch.Tensor, torch.Tensor, StepCredit], torch.Tensor]] = {
    "sum": lambda score_BS, mask_BS, credit: score_BS,
    "min_form": min_form,
    "strict_min": strict_min,
    "clip": clip,
    "delta": delta,
    # The one on the result of the other (arXiv 2410.15115).
    "clip_delta": lambda score_BS, mask_BS, credit: delta(clip(score_BS, mask_BS, credit), mask_BS, credit),
}
