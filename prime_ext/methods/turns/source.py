# SPDX-License-Identifier: Apache-2.0
"""Rewards of turns as a source; each is paid at the last token of its turn."""

from prime_ext.methods.rollouts import Rewards, Rollouts, ScoredRollouts
from prime_ext.methods.turns.settings import TurnSettings


def rewards(rollouts: Rollouts, scored: ScoredRollouts, settings: TurnSettings) -> Rewards | None:
    """Return the rewards that the agent loop reported for each turn."""
    turns = rollouts.turns
    if turns is None or turns.reward_BT is None:
        return None
    return Rewards(turns.reward_BT, turns.end_BT & rollouts.mask_BT.bool())
