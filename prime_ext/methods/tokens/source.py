# SPDX-License-Identifier: Apache-2.0
"""PRIME's token rewards r_t = beta * (log pi_prm - log pi_ref) as a source (arXiv 2502.01456)."""

from prime_ext.algorithms.process_shaping import ProcessShaping
from prime_ext.methods.process_rewards import shape_rewards
from prime_ext.methods.rollouts import Rewards, Rollouts, ScoredRollouts
from prime_ext.methods.tokens.settings import TokenSettings


def rewards(rollouts: Rollouts, scored: ScoredRollouts, settings: TokenSettings) -> Rewards | None:
    """Return the PRM's reward of every token, normalized."""
    return shape_rewards(rollouts, scored, settings, ProcessShaping())
