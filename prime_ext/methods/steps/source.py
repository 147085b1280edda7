# SPDX-License-Identifier: Apache-2.0
"""The implicit PRM's token rewards, summed over steps, turns or responses, as a source."""

from prime_ext.algorithms.accumulation import StepScoreFunction
from prime_ext.algorithms.chain_reward import ChainReward
from prime_ext.algorithms.process_shaping import ProcessShaping
from prime_ext.methods.process_rewards import shape_rewards
from prime_ext.methods.rollouts import Rewards, Rollouts, ScoredRollouts
from prime_ext.methods.steps.settings import StepRewardSettings


def rewards(
    rollouts: Rollouts, scored: ScoredRollouts, settings: StepRewardSettings
) -> Rewards | None:
    """Return the rewards at the ends of steps, turns or responses, normalized."""
    shaping = ProcessShaping(
        settings.granularity,
        settings.credit,
        StepScoreFunction(settings.step_score, settings.step_score_scale),
        ChainReward(**settings.chain_arguments()),
        settings.reward_position,
    )
    return shape_rewards(rollouts, scored, settings, shaping)
