# SPDX-License-Identifier: Apache-2.0
"""Agent loops that give every sample its own reproducible seed.

verl 0.9.1 distinguishes requests of one prompt by random ids only. These loops pass a seed in the
sampling parameters, made from the rollout seed, the training step, the dataset row, the prompt, the
number of the sample within its group, and the turn. A resumed run then draws the same samples,
whichever server answers and in whatever order. ``rollout.agent.default_agent_loop`` names one.
"""

from collections.abc import Mapping
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState, ToolAgentLoop

from prime_ext.generate.generation import stable_seed
from prime_ext.verl_adapter.environment_loop import EnvironmentAgentLoop
from prime_ext.verl_adapter.tool_agent_loop import BoundedToolAgentLoop


def sample_seed(rollout_seed: int, sample: Mapping[str, Any]) -> int:
    """Return the seed of one sample from the fields that verl's V1 trainer gives an agent loop."""
    return stable_seed(
        rollout_seed,
        int(sample["global_steps"]),
        str(sample.get("index")),
        [(message["role"], str(message["content"])) for message in sample["raw_prompt"]],
        int(sample["session_id"]),
    )


class _SeededLoop(AgentLoopBase):
    async def run(
        self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any
    ) -> AgentLoopOutput:
        seed = sample_seed(self.rollout_config.seed, kwargs)
        return await super().run({**sampling_params, "seed": seed}, priority=priority, **kwargs)


@register("seeded_single_turn_agent")
class SeededSingleTurnAgentLoop(_SeededLoop, SingleTurnAgentLoop):
    """verl's single-turn loop with a seed per sample, named ``seeded_single_turn_agent``."""


class _SeededTurns(_SeededLoop, ToolAgentLoop):
    async def _handle_generating_state(
        self,
        agent_data: AgentData,
        sampling_params: dict[str, Any],
        ignore_termination: bool = False,
    ) -> AgentState:
        seed = stable_seed(sampling_params["seed"], agent_data.assistant_turns)
        return await super()._handle_generating_state(
            agent_data, {**sampling_params, "seed": seed}, ignore_termination=ignore_termination
        )


@register("seeded_tool_agent")
class SeededToolAgentLoop(_SeededTurns, BoundedToolAgentLoop):
    """``bounded_tool_agent`` with a seed per sample and turn, named ``seeded_tool_agent``."""


@register("seeded_environment_agent")
class SeededEnvironmentAgentLoop(_SeededTurns, EnvironmentAgentLoop):
    """``environment_agent`` with a seed per sample and turn: ``seeded_environment_agent``."""
