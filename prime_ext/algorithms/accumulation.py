# SPDX-License-Identifier: Apache-2.0
"""Scores of steps, and their accumulation into one per response: the F of PSPO* (arXiv 2411.11681).

Scores are ``(B, S)`` with the mask of steps; what stands outside of the mask is never read.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from prime_ext.algorithms.returns import kept, wide

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
        kept_BS = kept(sum_BS, step_mask_BS)
        if self.name == "none":
            return kept_BS
        # The sigmoid of an infinite sum would be a score like any other.
        _refuse(~kept_BS.isfinite(), kept_BS, ", which is not finite")
        total_BS = kept_BS.cumsum(-1) if self.name == "prefix_sigmoid" else kept_BS
        return kept(torch.sigmoid(self.scale * total_BS), step_mask_BS)


def accumulate(
    step_score_BS: torch.Tensor,
    step_mask_BS: torch.Tensor,
    mode: str = "geometric",
    first_weight: float = 1.0,
) -> torch.Tensor:
    """One score per response from the scores p_1 .. p_n of its steps, ``(B,)``.

    * ``mean``: their mean.
    * ``geometric``: (p_1 ... p_n)^(1/n), as exp(mean(log p)), so that long chains of small scores do not underflow. The
      F of PSPO-WRS.
    * ``min``: the smallest score.

    All lie between the smallest and the largest score (of which the first is weighted).

    Args:
        step_score_BS: scores; >= 0 for ``geometric``.
        step_mask_BS: whether the row has that step.
        mode: one of :data:`MODES`.
        first_weight: the first score is multiplied by it. The predecessor of PSPO-WRS takes 0.2, because a first step
            mostly restates the question; in a geometric mean that is the factor 0.2^(1/n), which pays for length.

    Returns:
        float32, or float64 if the scores are; 0 for rows without a step.

    Raises:
        ValueError: unknown mode, a weight not above 0, a score that is not finite, a negative score where
            logarithms are taken.
    """
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    if not 0 < first_weight < math.inf:
        raise ValueError(f"first_weight={first_weight!r} must be a number above 0")
    mask_BS = step_mask_BS.bool()
    score_BS = wide(step_score_BS)
    _refuse(mask_BS & ~score_BS.isfinite(), score_BS, ", which is not finite")
    if mode == "geometric":
        _refuse(mask_BS & (score_BS < 0), score_BS, "; geometric needs scores of at least 0")
    if first_weight != 1.0:
        first_BS = mask_BS & (mask_BS.cumsum(-1) == 1)
        score_BS = torch.where(first_BS, first_weight * score_BS, score_BS)
    if score_BS.shape[1] == 0:
        return score_BS.new_zeros(len(score_BS))
    return kept(MODES[mode](score_BS, mask_BS), mask_BS.any(-1))


def _refuse(bad_BS: torch.Tensor, score_BS: torch.Tensor, said: str) -> None:
    """Raises ValueError that names the first of these scores, with its row and step."""
    if bad_BS.any():
        row, step = bad_BS.nonzero()[0].tolist()
        raise ValueError(f"step {step + 1} of row {row} has the score {float(score_BS[row, step])}{said}")


def _mean(score_BS: torch.Tensor, mask_BS: torch.Tensor) -> torch.Tensor:
    return kept(score_BS, mask_BS).sum(-1) / mask_BS.sum(-1).clamp_min(1)


MODES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": _mean,
    "geometric": lambda score_BS, mask_BS: _mean(score_BS.log(), mask_BS).exp(),
    "min": lambda score_BS, mask_BS: torch.where(mask_BS, score_BS, torch.inf).amin(-1),
}
