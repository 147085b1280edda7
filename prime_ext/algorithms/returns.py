# SPDX-License-Identifier: Apache-2.0
"""Discounted returns, whitening and the normalisation of process rewards."""

import torch


def last_token(mask_BT: torch.Tensor) -> torch.Tensor:
    """Position of the last valid token of each row, ``(B,)`` int64; the last position of all for rows without any."""
    return mask_BT.shape[1] - 1 - mask_BT.bool().flip(-1).view(torch.uint8).argmax(-1)


def last_token_mask(mask_BT: torch.Tensor) -> torch.Tensor:
    """1 at the last valid token of each row, 0 elsewhere (everywhere for rows without a valid token)."""
    last_B1 = last_token(mask_BT)[:, None]
    return torch.zeros_like(mask_BT).scatter_(1, last_B1, mask_BT.gather(1, last_B1))


def _reverse_discounted_sum(value_BT: torch.Tensor, discount: float) -> torch.Tensor:
    """x_t + discount * x_{t+1} + discount^2 * x_{t+2} + ... along the last axis."""
    total_TB = value_BT.t().contiguous()
    for t in range(len(total_TB) - 2, -1, -1):
        total_TB[t].add_(total_TB[t + 1], alpha=discount)
    return total_TB.t()


def has_holes(mask_BT: torch.Tensor) -> bool:
    """Whether a row has a valid token behind an invalid one."""
    mask_BT = mask_BT.bool()
    return bool((mask_BT[:, 1:] & ~mask_BT[:, :-1]).any())


def closed_positions(mask_BT: torch.Tensor) -> torch.Tensor:
    """Where each valid token goes if the valid tokens of a row move together at the left; T for invalid ones."""
    mask_BT = mask_BT.bool()
    return mask_BT.cumsum(-1).sub_(1).masked_fill_(~mask_BT, mask_BT.shape[1])


def close_holes(value_BT: torch.Tensor, position_BT: torch.Tensor) -> torch.Tensor:
    """The values at the valid tokens, moved to :func:`closed_positions`; 0 behind them."""
    packed_BT = value_BT.new_zeros(len(value_BT), value_BT.shape[1] + 1).scatter_(1, position_BT, value_BT)
    return packed_BT[:, :-1].contiguous()


def reopen_holes(packed_BT: torch.Tensor, position_BT: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`close_holes`; 0 at invalid tokens."""
    return torch.nn.functional.pad(packed_BT, (0, 1)).gather(1, position_BT)


def return_to_go(reward_BT: torch.Tensor, mask_BT: torch.Tensor, discount: float = 1.0) -> torch.Tensor:
    """R_t = r_t + discount * R_{t+1} over the valid tokens.

    Positions outside the mask contribute nothing and receive 0; a hole in the mask (for example a tool's answer in the
    middle of a response) is stepped over without discounting.
    """
    # A selection, not a product with the mask: outside of it there may be anything, NaN included.
    kept_BT = torch.where(mask_BT.bool(), reward_BT, reward_BT.new_zeros(()))
    return return_to_go_of_kept(kept_BT, mask_BT, discount)


def return_to_go_of_kept(kept_BT: torch.Tensor, mask_BT: torch.Tensor, discount: float) -> torch.Tensor:
    """:func:`return_to_go` of rewards that are known to be 0 outside the mask."""
    if discount == 1.0:
        return kept_BT.flip(-1).cumsum(-1).flip(-1).mul_(mask_BT.to(kept_BT.dtype))
    if has_holes(mask_BT):
        position_BT = closed_positions(mask_BT)
        return reopen_holes(_reverse_discounted_sum(close_holes(kept_BT, position_BT), discount), position_BT)
    return _reverse_discounted_sum(kept_BT, discount) * mask_BT.to(kept_BT.dtype)


def normalize_by_batch_max(
    reward_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    discount: float = 1.0,
    floor: torch.Tensor | float = 0.0,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide the rewards by the largest |return-to-go| of the whole batch (``batch_norm`` in the code of PRIME).

    The original takes the maximum per rank, so that its result depends on the number of GPUs; here the batch is the
    global one. It is at least ``floor``.

    Returns:
        The scaled rewards ``(B, T)`` and the maximum (a scalar tensor), so that it can be logged.
    """
    largest = return_to_go(reward_BT, mask_BT, discount).abs().max().clamp_min(floor)
    return reward_BT / (largest + epsilon), largest


def whiten(value_BT: torch.Tensor, mask_BT: torch.Tensor, epsilon: float = 1e-8) -> torch.Tensor:
    """(x - mean) / sqrt(variance + epsilon) over the valid tokens of the batch, 0 elsewhere.

    The variance is the unbiased one, as in the code of PRIME and of verl. With fewer than two valid tokens only the
    mean is removed.
    """
    count = int(mask_BT.bool().sum(-1, dtype=torch.int32).sum())
    if count == 0:
        return torch.zeros_like(value_BT)
    kept_BT = torch.where(mask_BT.bool(), value_BT, value_BT.new_zeros(()))
    mean = kept_BT.sum() / count
    centred_BT = kept_BT.sub_(mean).mul_(mask_BT.to(kept_BT.dtype))
    if count > 1:
        variance = (centred_BT * centred_BT).sum() / (count - 1)
        centred_BT.mul_(torch.rsqrt(variance + epsilon))
    return centred_BT
