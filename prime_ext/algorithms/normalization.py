# SPDX-License-Identifier: Apache-2.0
"""The size of the process rewards: divided by a statistic of the batch."""

from collections.abc import Callable

import torch

from prime_ext.algorithms.returns import return_to_go

Normalization = Callable[..., tuple[torch.Tensor, torch.Tensor]]

# Rounding noise alone comes out of a normalisation at a fifth of the size of a signal.
NOISE_MARGIN = 5.0


def normalize_by_batch_max(
    reward_BT: torch.Tensor, mask_BT: torch.Tensor, discount: float, floor: torch.Tensor | float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide the rewards by the largest |return-to-go| of the global batch, at least ``floor``.

    ``batch_norm`` in the code of PRIME, which takes the maximum per rank and so depends on the number of GPUs.
    """
    largest = return_to_go(reward_BT, mask_BT, discount).abs().max().clamp_min(floor)
    return reward_BT / (largest + 1e-6), largest


def normalize_by_return_std(
    reward_BT: torch.Tensor, mask_BT: torch.Tensor, discount: float, floor: torch.Tensor | float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide by the standard deviation of the return-to-go over the valid tokens of the global batch.

    The deviation is 0 with fewer than two valid tokens, and at least ``floor``. Signs stay.
    """
    valid_N = return_to_go(reward_BT, mask_BT, discount)[mask_BT.bool()]
    deviation = valid_N.std() if valid_N.numel() > 1 else reward_BT.new_zeros(())
    deviation = deviation.clamp_min(floor)
    return reward_BT / (deviation + 1e-6), deviation


# The scaled rewards ``(B, T)``, and what they were divided by, a scalar tensor, so that it can be logged.
NORMALIZATIONS: dict[str, Normalization] = {
    "batch_max": normalize_by_batch_max,
    "return_std": normalize_by_return_std,
    "none": lambda reward_BT, mask_BT, discount, floor=0.0: (reward_BT, reward_BT.new_ones(())),
}
