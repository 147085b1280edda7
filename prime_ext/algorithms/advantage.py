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
"""PRIME's advantage: leave-one-out returns of the outcome and of the process rewards, summed, then whitened."""

from dataclasses import dataclass

import torch

from prime_ext.algorithms.leave_one_out import leave_one_out
from prime_ext.algorithms.returns import return_to_go, whiten


@dataclass(frozen=True)
class RewardSource:
    """One source of reward and how it enters the advantage.

    Attributes:
        reward_BT: token rewards ``(B, T)``.
        mask_BT: tokens at which the source gives rewards.
        coefficient: weight in the sum; applied before whitening, so that it counts.
        discount: discount of the source's return-to-go.
        form: form of the leave-one-out baseline, see :func:`leave_one_out`.
    """

    reward_BT: torch.Tensor
    mask_BT: torch.Tensor
    coefficient: float = 1.0
    discount: float = 1.0
    form: str = "released"


def last_token_mask(mask_BT: torch.Tensor) -> torch.Tensor:
    """1 at the last valid token of each row, 0 elsewhere (everywhere for rows without a valid token)."""
    positions_T = torch.arange(1, mask_BT.shape[1] + 1, device=mask_BT.device)
    last_B = (mask_BT.bool() * positions_T).amax(-1)
    return (positions_T[None, :] == last_B[:, None]).to(mask_BT.dtype)


def source_return(source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """Coefficient times the discounted return of the source's leave-one-out rewards, ``(B, T)``."""
    centred_BT = leave_one_out(source.reward_BT, source.mask_BT, group_B, source.form)
    return source.coefficient * return_to_go(centred_BT, response_mask_BT, source.discount)


def combine_sources(
    sources: dict[str, RewardSource], response_mask_BT: torch.Tensor, group_B: torch.Tensor, whitening: bool = True
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Sum the returns of all sources and whiten them over the valid tokens (PRIME, arXiv 2502.01456, Eq. 5).

    A source whose coefficient is 0 is left out, not multiplied by zero: its rewards may be anything.

    Returns:
        advantages ``(B, T)``, returns ``(B, T)`` before whitening, and the return of each source that entered.
    """
    per_source = {
        name: source_return(source, response_mask_BT, group_B)
        for name, source in sources.items()
        if source.coefficient != 0.0
    }
    if not per_source:
        raise ValueError("every reward source has the coefficient 0; at least one must count")
    return_BT = torch.stack(list(per_source.values())).sum(0)
    advantage_BT = whiten(return_BT, response_mask_BT) if whitening else return_BT * response_mask_BT
    return advantage_BT, return_BT, per_source
