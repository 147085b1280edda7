# SPDX-License-Identifier: Apache-2.0
"""The turns of a trajectory: runs of tokens of the policy between those of tools and users."""

from collections.abc import Sequence

import torch

from prime_ext.algorithms.returns import apply_mask, find_next
from prime_ext.algorithms.steps import step_spans


def turn_boundaries(own_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Mark the last valid token of each turn that has one, ``(B, T)`` bool.

    Args:
        own_BT: tokens that the policy wrote; a run of them is a turn.
        mask_BT: those of them that are trained on; a rejected token is missing and does not split
            its turn.
    """
    own_BT = own_BT.bool()
    valid_BT = mask_BT.bool() & own_BT.bool()
    turn_BT = _turn_numbers(own_BT)
    next_BT = torch.nn.functional.pad(turn_BT, (0, 1), value=own_BT.shape[1] + 1).gather(
        1, find_next(valid_BT)
    )
    return valid_BT & (next_BT > turn_BT)


def _turn_numbers(own_BT: torch.Tensor) -> torch.Tensor:
    """Return the turn number, from 0, of each token of the policy; meaningless elsewhere."""
    begin_BT = own_BT.clone()
    begin_BT[:, 1:] &= ~own_BT[:, :-1]
    return begin_BT.cumsum(-1) - 1


class WrongNumberOfRewards(ValueError):
    """The number of rewards of a row does not fit its number of turns."""

    def __init__(self, row: int, problem: str):
        super().__init__(f"{row}: {problem}")
        self.row = row
        self.problem = problem


def place_turn_rewards(
    rewards: Sequence[Sequence[float]], own_BT: torch.Tensor, mask_BT: torch.Tensor
) -> torch.Tensor:
    """Place each turn's reward at its last valid token, 0 elsewhere, ``(B, T)`` float32.

    Masks are those of :func:`turn_boundaries`. A row has one reward for each of its turns, and may
    lack that of the last. The reward of a turn without a valid token is dropped. Raises
    WrongNumberOfRewards: a row has another number of rewards.
    """
    own_BT = own_BT.bool()
    turn_BT = _turn_numbers(own_BT)
    count_B = step_spans(turn_boundaries(own_BT, own_BT), own_BT).count_B
    reward_BS = torch.zeros(len(own_BT), max(1, int(count_B.max()) if len(count_B) else 0))
    for row, (row_rewards, count) in enumerate(zip(rewards, count_B.tolist(), strict=True)):
        if count and not count - 1 <= len(row_rewards) <= count:
            raise WrongNumberOfRewards(row, f"{count} turns and {len(row_rewards)} rewards")
        reward_BS[row, : min(count, len(row_rewards))] = torch.tensor(
            row_rewards[:count], dtype=torch.float32
        )
    paid_BT = reward_BS.gather(1, turn_BT.clamp_min(0))
    return apply_mask(paid_BT, turn_boundaries(own_BT, mask_BT))
