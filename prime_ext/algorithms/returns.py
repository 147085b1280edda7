# SPDX-License-Identifier: Apache-2.0
"""Selections by masks, positions of tokens, discounted returns, normalization and whitening."""

import torch

# Normalization scales rounding noise alone to a fifth of the size of a signal.
NOISE_MARGIN = 5.0


def find_last_token(mask_BT: torch.Tensor) -> torch.Tensor:
    """Return the position of each row's last valid token, ``(B,)`` int64.

    Rows without a valid token get the last position.
    """
    return mask_BT.shape[1] - 1 - mask_BT.bool().flip(-1).view(torch.uint8).argmax(-1)


def mark_last_token(mask_BT: torch.Tensor) -> torch.Tensor:
    """Return 1 at the last valid token of each row, 0 elsewhere and in rows without one."""
    last_B1 = find_last_token(mask_BT)[:, None]
    return torch.zeros_like(mask_BT).scatter_(1, last_B1, mask_BT.gather(1, last_B1))


def find_next(mark_BT: torch.Tensor) -> torch.Tensor:
    """Return the position of the next marked token after each token, ``(B, T)`` int64, or T."""
    n_tokens = mark_BT.shape[1]
    at_BT = torch.where(mark_BT.bool(), torch.arange(n_tokens, device=mark_BT.device), n_tokens)
    return torch.nn.functional.pad(
        at_BT.flip(-1).cummin(-1).values.flip(-1)[:, 1:], (0, 1), value=n_tokens
    )


def apply_mask(value_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return the values inside the mask, 0 outside: a selection, since a product would keep NaN."""
    return torch.where(mask_BT.bool(), value_BT, value_BT.new_zeros(()))


def upcast(value: torch.Tensor) -> torch.Tensor:
    """Return the values in float32 or better."""
    return value.to(torch.promote_types(value.dtype, torch.float32))


def return_to_go(
    reward_BT: torch.Tensor, mask_BT: torch.Tensor, discount: float = 1.0
) -> torch.Tensor:
    """Return R_t = r_t + discount * R_{t+1} over the valid tokens, 0 at other positions.

    A hole in the mask, such as a tool's answer, is skipped without discounting.
    """
    mask_BT = mask_BT.bool()
    reward_BT = apply_mask(reward_BT, mask_BT)
    if discount == 1.0:
        return reward_BT.flip(-1).cumsum(-1).flip(-1).mul_(mask_BT.to(reward_BT.dtype))
    if not bool((mask_BT[:, 1:] & ~mask_BT[:, :-1]).any()):
        return _sum_discounted(reward_BT, discount) * mask_BT.to(reward_BT.dtype)
    # Move valid tokens to the left and invalid ones to a column after them, then move all back.
    column_BT = mask_BT.cumsum(-1).sub_(1).masked_fill_(~mask_BT, mask_BT.shape[1])
    packed_BT = torch.nn.functional.pad(torch.zeros_like(reward_BT), (0, 1)).scatter_(
        1, column_BT, reward_BT
    )
    return torch.nn.functional.pad(_sum_discounted(packed_BT[:, :-1], discount), (0, 1)).gather(
        1, column_BT
    )


def _sum_discounted(value_BT: torch.Tensor, discount: float) -> torch.Tensor:
    """Return x_t + discount * x_{t+1} + discount^2 * x_{t+2} + ... along the last axis."""
    total_TB = value_BT.t().contiguous()
    for t in range(len(total_TB) - 2, -1, -1):
        total_TB[t].add_(total_TB[t + 1], alpha=discount)
    return total_TB.t()


def whiten(value_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return (x - mean) / sqrt(variance + 1e-8) over the valid tokens of the batch, 0 elsewhere.

    The variance is unbiased, as in the code of PRIME and verl. With fewer than two tokens only the
    mean is removed.
    """
    count = int(mask_BT.bool().sum(-1, dtype=torch.int32).sum())
    if count == 0:
        return torch.zeros_like(value_BT)
    kept_BT = apply_mask(value_BT, mask_BT)
    mean = kept_BT.sum() / count
    centered_BT = kept_BT.sub_(mean).mul_(mask_BT.to(kept_BT.dtype))
    if count > 1:
        variance = (centered_BT * centered_BT).sum() / (count - 1)
        centered_BT.mul_(torch.rsqrt(variance + 1e-8))
    return centered_BT


def normalize_by_batch_max(
    reward_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    discount: float,
    floor: torch.Tensor | float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rewards divided by the largest |return-to-go| of the batch, and that maximum.

    The maximum is over the global batch, and at least ``floor``. This is ``batch_norm`` in the code
    of PRIME, which takes the maximum per rank and so depends on the number of GPUs.
    """
    largest = return_to_go(reward_BT, mask_BT, discount).abs().max().clamp_min(floor)
    return reward_BT / (largest + 1e-6), largest
