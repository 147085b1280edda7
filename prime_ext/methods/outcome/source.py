# SPDX-License-Identifier: Apache-2.0
"""The outcome as a source of reward."""

from prime_ext.algorithms.advantage import outcome_source
from prime_ext.algorithms.implicit_reward import compute_implicit_values
from prime_ext.methods.outcome.settings import OutcomeSettings
from prime_ext.methods.rollouts import Rewards, Rollouts, ScoredRollouts


def rewards(rollouts: Rollouts, scored: ScoredRollouts, settings: OutcomeSettings) -> Rewards:
    """Return verl's rewards, or the advantage that an estimator of verl computed from them."""
    mask_BT = rollouts.mask_BT
    if rollouts.advantage_BT is not None:
        return Rewards(rollouts.advantage_BT, mask_BT, is_advantage=True)
    value_BT = None
    if settings.reads_prm and scored.reward_BT is not None:
        value_BT = compute_implicit_values(scored.reward_BT, mask_BT)
    outcome = outcome_source(rollouts.reward_BT, mask_BT, settings.estimator)
    return Rewards(outcome.reward_BT, outcome.mask_BT, value_BT=value_BT)
