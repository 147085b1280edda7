# SPDX-License-Identifier: Apache-2.0
"""Settings of rewards of turns. No torch."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from omegaconf import DictConfig
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT, Share
from prime_ext.methods.source_settings import Needs, SourceSettings, TurnEstimator
from prime_ext.names import ENVIRONMENT_LOOPS, SINGLE_TURN_LOOPS, TOOL_LOOPS

if TYPE_CHECKING:
    from prime_ext.methods.settings import PrimeSettings


@dataclass(frozen=True, config=STRICT)
class TurnSettings(SourceSettings):
    """Rewards of turns that the agent loop reports, as a separate source.

    Each is paid at the last token of its turn (docs/explanation/turns.md).
    """

    field: Literal["tool_rewards", "turn_scores", "turn_progress"] = "tool_rewards"
    """tool_rewards: what tools return in addition to their answer, one number per turn that calls
    one. With environments (environment_agent): turn_scores, the environment's reward of each turn,
    or turn_progress, what its progress rose by. An agent loop of your own may report any of them.
    """
    discount: Share = 1.0
    """Discount of the return: per turn with turn_rloo, per token with other estimators."""
    estimator: TurnEstimator = "turn_rloo"
    """turn_rloo, rloo, grpo or reinforce."""

    @property
    def needs(self) -> Needs:
        return Needs(turns=True)

    def run_problems(self, config: DictConfig, prime: "PrimeSettings") -> Iterable[str]:
        """Check that an agent loop reports one reward for each turn."""
        key = f"prime.turns.field={self.field}"
        rollout = config.actor_rollout_ref.rollout
        loop = rollout.agent.default_agent_loop
        calls = rollout.multi_turn.max_parallel_calls
        if loop in SINGLE_TURN_LOOPS:
            remedy = "set it to tool_agent, or prime/turns=none"
            yield (
                f"{key}: actor_rollout_ref.rollout.agent.default_agent_loop={loop} has no rewards"
                f" of turns; {remedy}"
            )
        elif self.field != "tool_rewards" and loop in TOOL_LOOPS:
            yield f"{key}: {loop} reports none; set it to tool_rewards"
        elif self.field == "tool_rewards" and loop in ENVIRONMENT_LOOPS:
            yield f"{key}: {loop} calls no tools; set it to turn_scores or turn_progress"
        elif self.field == "tool_rewards" and calls != 1:
            where = f"actor_rollout_ref.rollout.multi_turn.max_parallel_calls={calls}"
            yield f"{key} does not say which turn a reward is of with {where}; set it to 1"
