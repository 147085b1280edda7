# SPDX-License-Identifier: Apache-2.0
"""A step scorer's scores as a source: PSPO-WRS (arXiv 2411.11681), PURE, and others.

The reward manager ``pspo_wrs`` pays by the same :func:`build_shaping`.
"""

from prime_ext.algorithms.chain_reward import ChainReward
from prime_ext.algorithms.process_shaping import ProcessShaping
from prime_ext.methods.process_rewards import shape_rewards
from prime_ext.methods.rollouts import Rewards, Rollouts, ScoredRollouts
from prime_ext.methods.step_scorer.settings import StepScorerSettings


def rewards(
    rollouts: Rollouts, scored: ScoredRollouts, settings: StepScorerSettings
) -> Rewards | None:
    """Return the rewards of the steps, or of the response, for their scores."""
    return shape_rewards(rollouts, scored, settings, build_shaping(settings))


def build_shaping(settings: StepScorerSettings) -> ProcessShaping:
    """Build the function from scores of steps to rewards of tokens."""
    return ProcessShaping(
        settings.granularity,
        settings.credit,
        chain=ChainReward(**settings.chain_arguments()),
        reward_position=settings.reward_position,
    )
