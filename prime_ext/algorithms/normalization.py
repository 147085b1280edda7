# SPDX-License-Identifier: Apache-2.0
"""The size of the process rewards: divided by a statistic of the batch."""

import torch

from prime_ext.algorithms.returns import return_to_go

# Rounding noise alone comes out of a normalization at a fifth of the size of a signal.
NOISE_MARGIN = 5.0


def normalize_by_batch_max(
    reward_BT: torch.Tensor, mask_BT: torch.Tensor, discount: float, floor: torch.Tensor | float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide the rewards by the largest |return-to-go| of the global batch, at least ``floor``, and return both.

    ``batch_norm`` in the code of PRIME, which takes the maximum per rank and so depends on the number of GPUs.
    """
    largest = return_to_go(reward_BT, mask_BT, discount).abs().max().clamp_min(floor)
    return reward_BT / (largest + 1e-6), largest
