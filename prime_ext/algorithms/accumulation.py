# SPDX-License-Identifier: Apache-2.0
"""Scores of steps, and their accumulation into one per response: the F of PSPO* (arXiv 2411.11681), and alternatives.

Scores are ``(B, S)`` with the mask of steps; what stands outside of the mask is never read.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from prime_ext.algorithms.returns import kept, last_token_mask, wide

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
    temperature: float = 0.1,
    first_weight: float = 1.0,
) -> torch.Tensor:
    """One score per response from the scores p_1 .. p_n of its steps, ``(B,)``.

    * ``sum``: p_1 + ... + p_n; grows with n.
    * ``mean``: the sum over n.
    * ``geometric``: (p_1 ... p_n)^(1/n), as exp(mean(log p)), so that long chains of small scores do not underflow. The
      F of PSPO-WRS.
    * ``product``: p_1 ... p_n, as exp(sum(log p)); 0 once it is below what the dtype holds. Shrinks with n.
    * ``min``: the smallest score.
    * ``softmin``: -T log(mean(exp(-p / T))), between the minimum (T to 0) and the mean (T to infinity). It
      never falls when a score rises; the sum of PURE's min-form credit, a weighted mean, can.
    * ``last``: the score of the last step.

    All but ``sum`` and ``product`` lie between the smallest and the largest score (of which the first is weighted).

    Args:
        step_score_BS: scores; >= 0 for ``geometric`` and ``product``.
        step_mask_BS: whether the row has that step.
        mode: one of :data:`MODES`.
        temperature: of ``softmin``, in units of the score.
        first_weight: the first score is multiplied by it. The predecessor of PSPO-WRS takes 0.2, because a first step
            mostly restates the question; in a geometric mean that is the factor 0.2^(1/n), which pays for length.

    Returns:
        float32, or float64 if the scores are; 0 for rows without a step.

    Raises:
        ValueError: unknown mode, temperature or weight not above 0, a score that is not finite, a negative score where
            logarithms are taken.
    """
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    for name, value in (("temperature", temperature), ("first_weight", first_weight)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name}={value!r} must be a number above 0")
    mask_BS = step_mask_BS.bool()
    score_BS = wide(step_score_BS)
    _refuse(mask_BS & ~score_BS.isfinite(), score_BS, ", which is not finite")
    if mode in MODES_OF_POSITIVE_SCORES:
        _refuse(mask_BS & (score_BS < 0), score_BS, f"; {mode} needs scores of at least 0")
    if first_weight != 1.0:
        first_BS = mask_BS & (mask_BS.cumsum(-1) == 1)
        score_BS = torch.where(first_BS, first_weight * score_BS, score_BS)
    if score_BS.shape[1] == 0:
        return score_BS.new_zeros(len(score_BS))
    return kept(MODES[mode](score_BS, mask_BS, temperature), mask_BS.any(-1))


def _refuse(bad_BS: torch.Tensor, score_BS: torch.Tensor, said: str) -> None:
    """Raises ValueError that names the first of these scores, with its row and step."""
    if bad_BS.any():
        row, step = bad_BS.nonzero()[0].tolist()
        raise ValueError(f"step {step + 1} of row {row} has the score {float(score_BS[row, step])}{said}")


def _sum(score_BS: torch.Tensor, mask_BS: torch.Tensor) -> torch.Tensor:
    return kept(score_BS, mask_BS).sum(-1)


def _mean(score_BS: torch.Tensor, mask_BS: torch.Tensor) -> torch.Tensor:
    return _sum(score_BS, mask_BS) / mask_BS.sum(-1).clamp_min(1)


def _softmin(score_BS: torch.Tensor, mask_BS: torch.Tensor, temperature: float) -> torch.Tensor:
    lowest_B1 = torch.where(mask_BS, score_BS, torch.inf).amin(-1, keepdim=True)
    # Relative to the smallest score the mean lies in [1/n, 1], so that its logarithm is exact for any scores.
    above_BS = kept((score_BS - lowest_B1) / temperature, mask_BS)
    return lowest_B1[:, 0] - temperature * _mean(torch.exp(-above_BS), mask_BS).log()


MODES: dict[str, Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]] = {
    "sum": lambda score_BS, mask_BS, _: _sum(score_BS, mask_BS),
    "mean": lambda score_BS, mask_BS, _: _mean(score_BS, mask_BS),
    "geometric": lambda score_BS, mask_BS, _: _mean(score_BS.log(), mask_BS).exp(),
    "product": lambda score_BS, mask_BS, _: _sum(score_BS.log(), mask_BS).exp(),
    "min": lambda score_BS, mask_BS, _: torch.where(mask_BS, score_BS, torch.inf).amin(-1),
    "softmin": _softmin,
    "last": lambda score_BS, mask_BS, _: _sum(score_BS, last_token_mask(mask_BS.float()).bool()),
}
MODES_OF_POSITIVE_SCORES = ("geometric", "product")
