# SPDX-License-Identifier: Apache-2.0
"""Sign-preserving credit: the outcome says in which direction, a scorer only how far (RLSD, arXiv 2604.03128)."""

import math

import torch


def sign_preserving(
    advantage_BT: torch.Tensor, log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, weight: float, clip: float
) -> torch.Tensor:
    """A_t * [(1 - l) + l * clip(exp(sign(A_t) * q_t), 1 - e, 1 + e)], ``(B, T)``, 0 outside the mask.

    A right response gains most at the tokens that the scorer likes, a wrong one loses most at those that it dislikes.
    No advantage changes its sign, and each is multiplied by 1 - l * e at least and by 1 + l * e at most.

    Args:
        advantage_BT: of the outcome, as the policy's loss would take it: whitened, if it is.
        log_ratio_BT: q, what the scorer says of each token.
        mask_BT: response mask.
        weight: l in [0, 1].
        clip: e in (0, 1).

    Raises:
        ValueError: weight or clip out of bounds.
    """
    if not 0 <= weight <= 1 or not 0 < clip < 1:
        raise ValueError(f"weight={weight} must be in [0, 1] and clip={clip} in (0, 1)")
    exponent_BT = torch.where(mask_BT.bool(), advantage_BT.sign() * log_ratio_BT, 0.0)
    # Clipped first: exp of a large ratio is infinite.
    factor_BT = exponent_BT.clamp(math.log(1 - clip), math.log(1 + clip)).exp()
    return torch.where(mask_BT.bool(), advantage_BT * (1 - weight + weight * factor_BT), 0.0)
