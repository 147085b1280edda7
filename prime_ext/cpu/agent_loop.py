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
"""An agent loop that gives every sample its own reproducible seed.

verl 0.9.1 names its requests with random ids, and several requests of one prompt are told apart by nothing else. This
loop passes a seed in the sampling parameters, made from the rollout seed, the training step, the dataset row, the
prompt and the number of the sample within its group. A run that was killed and resumed then draws the same samples,
whichever server answers and in whatever order.
"""

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from prime_ext.cpu.seeds import stable_seed

AGENT_LOOP_NAME = "seeded_single_turn_agent"


@register(AGENT_LOOP_NAME)
class SeededSingleTurnAgentLoop(SingleTurnAgentLoop):
    """verl's single-turn loop with a seed per sample; ``rollout.agent.default_agent_loop=seeded_single_turn_agent``."""

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        seed = stable_seed(
            self.rollout_config.seed,
            int(kwargs["global_steps"]),
            str(kwargs.get("index")),
            [(message["role"], str(message["content"])) for message in kwargs["raw_prompt"]],
            int(kwargs["session_id"]),
        )
        return await super().run({**sampling_params, "seed": seed}, priority=priority, **kwargs)
