# SPDX-License-Identifier: Apache-2.0
"""Scores of steps, and their accumulation into one per response: the F of PSPO* (arXiv 2411.11681).

Scores are ``(B, S)`` with the mask of steps; values outside of the mask are never read.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from prime_ext import names
from prime_ext.algorithms.returns import apply_mask, upcast


@dataclass(frozen=True)
class StepScoreFunction:
    """Function from x_k, the sum of beta * q_t over step k, to the score p_k of the step.

    With a PRM trained by cross-entropy, x_k is what step k adds to the log-odds of success (PRIME,
    arXiv 2502.01456).

    * ``none``: p_k = x_k, of any sign.
    * ``sigmoid``: p_k = sigmoid(scale * x_k), the chance of success after the step if it was 1/2
      before.

    Attributes:
        name: one of the two.
        scale: factor before the sigmoid. With beta = 0.05 all scores are near 1/2; about 1 / std(x)
            separates them.
    """

    name: names.StepScoreName = "none"
    scale: float = 1.0

    def __call__(self, sum_BS: torch.Tensor, step_mask_BS: torch.Tensor) -> torch.Tensor:
        """Return the scores ``(B, S)``, 0 outside of the mask.

        Raises ValueError for a sigmoid of a sum that is not finite.
        """
        kept_BS = apply_mask(sum_BS, step_mask_BS)
        if self.name == "none":
            return kept_BS
        # The sigmoid would turn an infinite sum into an ordinary score.
        _refuse(~kept_BS.isfinite(), kept_BS, ", which is not finite")
        return apply_mask(torch.sigmoid(self.scale * kept_BS), step_mask_BS)


def accumulate(
    step_score_BS: torch.Tensor,
    step_mask_BS: torch.Tensor,
    mode: str = "geometric",
    first_weight: float = 1.0,
) -> torch.Tensor:
    """Return one score per response from the scores p_1 .. p_n of its steps, ``(B,)``.

    ``geometric``, the F of PSPO-WRS, is (p_1 ... p_n)^(1/n) as exp(mean(log p)), which does not
    underflow.

    Args:
        step_score_BS: scores; >= 0 for ``geometric``.
        step_mask_BS: whether the row has that step; rows without any have the score 0.
        mode: one of :data:`MODES`.
        first_weight: factor on the first score, above 0; the predecessor of PSPO-WRS uses 0.2.

    Raises:
        ValueError: a score that is not finite, or a negative one for ``geometric``.
    """
    mask_BS = step_mask_BS.bool()
    score_BS = upcast(step_score_BS)
    _refuse(mask_BS & ~score_BS.isfinite(), score_BS, ", which is not finite")
    if mode == "geometric":
        _refuse(mask_BS & (score_BS < 0), score_BS, "; geometric needs scores of at least 0")
    if first_weight != 1.0:
        first_BS = mask_BS & (mask_BS.cumsum(-1) == 1)
        score_BS = torch.where(first_BS, first_weight * score_BS, score_BS)
    if score_BS.shape[1] == 0:
        return score_BS.new_zeros(len(score_BS))
    return apply_mask(MODES[mode](score_BS, mask_BS), mask_BS.any(-1))


def _refuse(bad_BS: torch.Tensor, score_BS: torch.Tensor, problem: str) -> None:
    """Raise ValueError with the first bad score, its row and its step, if there is one."""
    if bad_BS.any():
        row, step = bad_BS.nonzero()[0].tolist()
        raise ValueError(
            f"step {step + 1} of row {row} has the score {float(score_BS[row, step])}{problem}"
        )


def _mean(score_BS: torch.Tensor, mask_BS: torch.Tensor) -> torch.Tensor:
    return apply_mask(score_BS, mask_BS).sum(-1) / mask_BS.sum(-1).clamp_min(1)


MODES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": _mean,
    "geometric": lambda score_BS, mask_BS: _mean(score_BS.log(), mask_BS).exp(),
    "min": lambda score_BS, mask_BS: torch.where(mask_BS, score_BS, torch.inf).amin(-1),
}
