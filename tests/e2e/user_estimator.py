# SPDX-License-Identifier: Apache-2.0
"""An estimator as a user registers one with verl."""

import torch
from verl.trainer.ppo.core_algos import register_adv_est


@register_adv_est("two_thirds")
def two_thirds(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, **_: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 2/3 at every token, whatever the rewards."""
    advantage_BT = 2 / 3 * response_mask
    return advantage_BT, advantage_BT
