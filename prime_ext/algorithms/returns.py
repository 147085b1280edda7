# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Discounted returns, whitening and the normalisation of process rewards."""

import torch


def last_token_mask(mask_BT: torch.Tensor) -> torch.Tensor:
    """1 at the last valid token of each row, 0 elsewhere (everywhere for rows without a valid token)."""
    positions_T = torch.arange(1, mask_BT.shape[1] + 1, device=mask_BT.device)
    last_B = (mask_BT.bool() * positions_T).amax(-1)
    return (positions_T[None, :] == last_B[:, None]).to(mask_BT.dtype)


# Tokens that one matrix product of a discounted sum spans.
_BLOCK = 64


def _reverse_discounted_sum(value_BT: torch.Tensor, discount: float) -> torch.Tensor:
    """x_t + discount * x_{t+1} + discount^2 * x_{t+2} + ... along the last axis.

    Inside blocks of tokens it is a product with a triangular matrix of powers; what follows a block is the same sum
    over the heads of the later blocks, so that no loop over tokens is needed and no power is ever divided by.
    """
    n_rows, n_tokens = value_BT.shape
    n_blocks = -(-n_tokens // _BLOCK)
    width = min(n_tokens, _BLOCK)
    lag_KK = torch.arange(width)[:, None] - torch.arange(width)[None, :]
    power_KK = torch.where(lag_KK >= 0, float(discount) ** lag_KK.clamp_min(0).double(), 0.0).to(value_BT)
    if n_blocks <= 1:
        return value_BT @ power_KK
    padded_BT = torch.nn.functional.pad(value_BT, (0, n_blocks * width - n_tokens))
    local_BNK = padded_BT.view(n_rows, n_blocks, width) @ power_KK
    following_BN = torch.zeros_like(local_BNK[..., 0])
    following_BN[:, :-1] = _reverse_discounted_sum(local_BNK[..., 0], discount**width)[:, 1:]
    decay_K = (float(discount) ** (width - torch.arange(width)).double()).to(value_BT)
    return local_BNK.add_(following_BN[..., None] * decay_K).view(n_rows, -1)[:, :n_tokens]


def has_holes(mask_BT: torch.Tensor) -> bool:
    """Whether a row has a valid token behind an invalid one."""
    mask_BT = mask_BT.bool()
    return bool((mask_BT[:, 1:] & ~mask_BT[:, :-1]).any())


def close_holes(value_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """The values at the valid tokens, moved together at the left; 0 behind them."""
    mask_BT = mask_BT.bool()
    target_BT = torch.where(mask_BT, mask_BT.cumsum(-1) - 1, mask_BT.shape[1])
    packed_BT = value_BT.new_zeros(len(value_BT), value_BT.shape[1] + 1).scatter_(1, target_BT, value_BT)
    return packed_BT[:, :-1].contiguous()


def reopen_holes(packed_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`close_holes`; 0 at invalid tokens."""
    mask_BT = mask_BT.bool()
    source_BT = (mask_BT.cumsum(-1) - 1).clamp_min(0)
    return torch.where(mask_BT, packed_BT.gather(1, source_BT), packed_BT.new_zeros(()))


def return_to_go(reward_BT: torch.Tensor, mask_BT: torch.Tensor, discount: float = 1.0) -> torch.Tensor:
    """R_t = r_t + discount * R_{t+1} over the valid tokens.

    Positions outside the mask contribute nothing and receive 0; a hole in the mask (for example a tool's answer in the
    middle of a response) is stepped over without discounting.
    """
    # A selection, not a product with the mask: outside of it there may be anything, NaN included.
    reward_BT = torch.where(mask_BT.bool(), reward_BT, reward_BT.new_zeros(()))
    if discount == 1.0:
        return reward_BT.flip(-1).cumsum(-1).flip(-1) * mask_BT.to(reward_BT.dtype)
    if has_holes(mask_BT):
        return reopen_holes(_reverse_discounted_sum(close_holes(reward_BT, mask_BT), discount), mask_BT)
    return _reverse_discounted_sum(reward_BT, discount) * mask_BT.to(reward_BT.dtype)


def normalize_by_batch_max(
    reward_BT: torch.Tensor, mask_BT: torch.Tensor, discount: float = 1.0, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide the rewards by the largest |return-to-go| of the whole batch (``batch_norm`` in the code of PRIME).

    The original takes the maximum per rank, so that its result depends on the number of GPUs; here the batch is the
    global one.

    Returns:
        The scaled rewards ``(B, T)`` and the maximum (a scalar tensor), so that it can be logged.
    """
    largest = return_to_go(reward_BT, mask_BT, discount).abs().max()
    return reward_BT / (largest + epsilon), largest


def whiten(value_BT: torch.Tensor, mask_BT: torch.Tensor, epsilon: float = 1e-8) -> torch.Tensor:
    """(x - mean) / sqrt(variance + epsilon) over the valid tokens of the batch, 0 elsewhere.

    The variance is the unbiased one, as in the code of PRIME and of verl. With fewer than two valid tokens only the
    mean is removed.
    """
    mask_BT = mask_BT.bool()
    valid_N = value_BT[mask_BT]
    if valid_N.numel() == 0:
        return torch.zeros_like(value_BT)
    centred_BT = value_BT - valid_N.mean()
    if valid_N.numel() > 1:
        centred_BT = centred_BT * torch.rsqrt(valid_N.var(unbiased=True) + epsilon)
    return torch.where(mask_BT, centred_BT, centred_BT.new_zeros(()))
