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


def return_to_go(reward_BT: torch.Tensor, mask_BT: torch.Tensor, discount: float = 1.0) -> torch.Tensor:
    """R_t = r_t + discount * R_{t+1} over the valid tokens.

    Positions outside the mask contribute nothing and receive 0; a hole in the mask (for example a tool's answer in the
    middle of a response) is stepped over without discounting.
    """
    # A selection, not a product with the mask: outside of it there may be anything, NaN included.
    reward_BT = torch.where(mask_BT.bool(), reward_BT, reward_BT.new_zeros(()))
    mask_BT = mask_BT.to(reward_BT.dtype)
    if discount == 1.0:
        return reward_BT.flip(-1).cumsum(-1).flip(-1) * mask_BT
    return_BT = torch.zeros_like(reward_BT)
    running_B = torch.zeros_like(reward_BT[:, 0])
    for t in range(reward_BT.shape[1] - 1, -1, -1):
        valid_B = mask_BT[:, t]
        running_B = torch.where(valid_B > 0, reward_BT[:, t] + discount * running_B, running_B)
        return_BT[:, t] = running_B * valid_B
    return return_BT


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
