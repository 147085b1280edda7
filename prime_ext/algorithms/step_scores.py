# SPDX-License-Identifier: Apache-2.0
"""From summed implicit rewards of any sign to step scores in (0, 1), as a step classifier gives them."""

from dataclasses import dataclass

import torch

from prime_ext.algorithms.accumulation import check_scores

STEP_SCORES = ("none", "sigmoid", "prefix_sigmoid")


@dataclass(frozen=True)
class StepScore:
    """How the sum x_k = sum of beta * q_t over step k becomes the score p_k of the step.

    A PRM that is trained with the cross-entropy loss means sigmoid(x_1 + ... + x_n) to be the probability that the
    response is right (PRIME, arXiv 2502.01456): x_k is what step k adds to the log-odds.

    * ``none``: p_k = x_k, of any sign.
    * ``sigmoid``: p_k = sigmoid(scale * x_k): the probability of success behind the step if it was one half before it.
      A step that says nothing has the score 1/2.
    * ``prefix_sigmoid``: p_k = sigmoid(scale * (x_1 + ... + x_k)): the probability of success behind the step.

    Attributes:
        name: one of :data:`STEP_SCORES`.
        scale: what sums are multiplied by before the sigmoid. With beta = 0.05 they are small and all scores near 1/2,
            so that the number of steps decides; a scale near 1 / std(x) spreads them.
    """

    name: str = "none"
    scale: float = 1.0

    def __call__(self, sum_BS: torch.Tensor, step_mask_BS: torch.Tensor) -> torch.Tensor:
        """Scores ``(B, S)``, 0 where there is no step.

        Raises:
            ValueError: unknown name; with a sigmoid, a sum that is not finite.
        """
        if self.name not in STEP_SCORES:
            raise ValueError(f"step score {self.name!r} is not one of {', '.join(STEP_SCORES)}")
        mask_BS = step_mask_BS.bool()
        kept_BS = torch.where(mask_BS, sum_BS, sum_BS.new_zeros(()))
        if self.name == "none":
            return kept_BS
        # The sigmoid of an infinite sum would be a score like any other.
        check_scores(kept_BS, mask_BS)
        total_BS = kept_BS.cumsum(-1) if self.name == "prefix_sigmoid" else kept_BS
        return torch.where(mask_BS, torch.sigmoid(self.scale * total_BS), kept_BS.new_zeros(()))
