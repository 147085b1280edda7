# SPDX-License-Identifier: Apache-2.0
"""The size of the process rewards: divided by a statistic of the batch, or kept in proportion to the outcome's."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from prime_ext.algorithms.returns import kept, return_to_go

Normalization = Callable[..., tuple[torch.Tensor, torch.Tensor]]

# Rounding noise alone comes out of a normalisation at a fifth of the size of a signal.
NOISE_MARGIN = 5.0


def normalize_by_batch_max(
    reward_BT: torch.Tensor, mask_BT: torch.Tensor, discount: float, floor: torch.Tensor | float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide the rewards by the largest |return-to-go| of the whole batch (``batch_norm`` in the code of PRIME).

    The original takes the maximum per rank, so that its result depends on the number of GPUs; here the batch is the
    global one. It is at least ``floor``.
    """
    largest = return_to_go(reward_BT, mask_BT, discount).abs().max().clamp_min(floor)
    return reward_BT / (largest + 1e-6), largest


def normalize_by_return_std(
    reward_BT: torch.Tensor, mask_BT: torch.Tensor, discount: float, floor: torch.Tensor | float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide by the standard deviation of the return-to-go over the valid tokens of the global batch.

    Unlike the maximum it is not ruled by one outlier. Nothing is subtracted, so signs stay. The deviation is 0 with
    fewer than two valid tokens; at least ``floor``.
    """
    valid_N = return_to_go(reward_BT, mask_BT, discount)[mask_BT.bool()]
    deviation = valid_N.std() if valid_N.numel() > 1 else reward_BT.new_zeros(())
    deviation = deviation.clamp_min(floor)
    return reward_BT / (deviation + 1e-6), deviation


def normalize_by_prefix_std(
    reward_BT: torch.Tensor, mask_BT: torch.Tensor, discount: float, floor: torch.Tensor | float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(r_t - mean r) / std of the prefix sums, over the valid tokens of the global batch (code of IPVRM).

    The standard deviation is the population's, at least ``floor`` and 1e-6, and 1 with fewer than two valid tokens.
    ``discount`` plays no part: prefix values are plain sums. 0 outside the mask.
    """
    valid_BT, kept_BT = mask_BT.bool(), kept(reward_BT, mask_BT)
    if int(valid_BT.sum()) < 2:
        scale = kept_BT.new_ones(())
    else:
        scale = kept_BT.cumsum(-1)[valid_BT].std(unbiased=False).clamp_min(1e-6).clamp_min(floor)
    return kept((kept_BT - kept_BT.sum() / valid_BT.sum().clamp_min(1)) / scale, valid_BT), scale


# The scaled rewards ``(B, T)``, and what they were divided by, a scalar tensor, so that it can be logged.
NORMALIZATIONS: dict[str, Normalization] = {
    "batch_max": normalize_by_batch_max,
    "return_std": normalize_by_return_std,
    "prefix_std": normalize_by_prefix_std,
    "none": lambda reward_BT, mask_BT, discount, floor=0.0: (reward_BT, reward_BT.new_ones(())),
}


@dataclass
class OutcomeRelativeScale:
    """Running factor that keeps the spread of the process advantage at a share of the outcome's.

    factor = share * mean(outcome std) / mean(process std) with exponential means over the steps so far. A single batch
    whose process rewards are nearly 0 is therefore not blown up; an untrained PRM on the first steps is, which is what
    the reliability gate and the warm-up are for. An option of this package, not part of a paper.

    Attributes:
        share: wanted ratio of the standard deviations.
        decay: weight of the past in the means.
        largest: upper limit of the factor.
        process_std: running mean, None before the first step that counts. Part of the checkpoint.
        outcome_std: running mean, None before the first step that counts. Part of the checkpoint.
    """

    share: float = 1.0
    decay: float = 0.9
    largest: float = 1e3
    process_std: float | None = None
    outcome_std: float | None = None

    def update(self, process_std: float, outcome_std: float) -> float:
        """Take in the standard deviations of this step's advantages, before coefficients, and return the factor.

        A step in which one of them is 0 says nothing about their proportion: it is passed over, and the factor is that
        of the steps before, 0 if there were none.
        """
        if process_std > 0.0 and outcome_std > 0.0:
            self.process_std = self._mean(self.process_std, process_std)
            self.outcome_std = self._mean(self.outcome_std, outcome_std)
        if self.process_std is None or self.outcome_std is None:
            return 0.0
        return min(self.largest, self.share * self.outcome_std / self.process_std)

    def _mean(self, past: float | None, now: float) -> float:
        return now if past is None else self.decay * past + (1.0 - self.decay) * now
