# SPDX-License-Identifier: Apache-2.0
"""verl's tool agent loop for untrusted tools: ``default_agent_loop=bounded_tool_agent``.

verl waits for a tool without a limit, and passes its answer to the policy unchanged. Here a call
has a time limit, even if it blocks its thread; its answer cannot open or close a turn; and
``extra_fields["tool_calls"]`` of a trajectory counts the outcomes of its calls. To change the time
limit, name a file with this content in ``rollout.agent.agent_loop_config_path``:

    - name: bounded_tool_agent
      _target_: prime_ext.verl_adapter.tool_agent_loop.BoundedToolAgentLoop
      tool_timeout_seconds: 5
"""

import asyncio
import json
import logging
from typing import Any

from verl.experimental.agent_loop.agent_loop import register
from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState, ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall
from verl.tools.schemas import ToolResponse

from prime_ext.utils.loop_thread import LoopThread
from prime_ext.utils.text_tokens import build_token_pattern, clean
from prime_ext.verl_adapter.patches import tool_parser

LOOP_NAME = "bounded_tool_agent"
# Field of a trajectory's extra_fields with the numbers below.
FIELD = "tool_calls"
# All calls; calls with an unknown tool, with arguments that are not JSON, with an error of the
# tool, without an answer in time; answers cut, and cleaned. The last are not calls: texts between
# the marks of a call that verl's parser could not read.
COUNTED = ("calls", "unknown", "no_json", "raised", "timeout", "truncated", "cleaned", "undecoded")
FAILED = ("unknown", "no_json", "raised", "timeout")

_logger = logging.getLogger(__name__)


# Threads of all trajectories by the tool's id, since verl's function tools cannot be hashed. The
# tool is kept, so that no other object gets its id.
_threads: dict[int, tuple[Any, LoopThread]] = {}


@register(LOOP_NAME)
class BoundedToolAgentLoop(ToolAgentLoop):
    """verl's ``tool_agent`` with a time limit per call, from making the tool to its answer."""

    def __init__(self, *args: Any, tool_timeout_seconds: float = 60.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seconds = tool_timeout_seconds

    async def _handle_generating_state(
        self,
        agent_data: AgentData,
        sampling_params: dict[str, Any],
        ignore_termination: bool = False,
    ) -> AgentState:
        with tool_parser.count_undecoded() as undecoded:
            state = await super()._handle_generating_state(
                agent_data, sampling_params, ignore_termination=ignore_termination
            )
        if undecoded:
            self._counts(agent_data)["undecoded"] += len(undecoded)
        return state

    @staticmethod
    def _counts(agent_data: AgentData) -> dict[str, int]:
        return agent_data.extra_fields.setdefault(FIELD, dict.fromkeys(COUNTED, 0))

    async def _call_tool(
        self, tool_call: FunctionCall, tools_kwargs: dict[str, Any], agent_data: AgentData
    ) -> tuple[ToolResponse, float, dict]:
        name = tool_call.name
        counts = self._counts(agent_data)
        counts["calls"] += 1
        tool = agent_data._active_tools.get(name)
        call = super()._call_tool(tool_call, tools_kwargs, agent_data)
        # verl answers these without a tool.
        if tool is None:
            counts["unknown"] += 1
            return self._clean(await call, counts)
        try:
            json.loads(tool_call.arguments)
        except (ValueError, TypeError):
            counts["no_json"] += 1
            return self._clean(await call, counts)
        if id(tool) not in _threads:
            _threads[id(tool)] = (tool, LoopThread())
        try:
            answer = await _threads[id(tool)][1].run(call, self._seconds)
        except asyncio.TimeoutError:
            counts["timeout"] += 1
            _logger.warning("The tool %s did not answer within %g seconds.", name, self._seconds)
            return (
                ToolResponse(
                    text=f"Error: {name} did not answer within {self._seconds:g} seconds."
                ),
                0.0,
                {},
            )
        text = answer[0].text or ""
        counts["raised"] += text.startswith(f"Error executing tool '{name}'")
        counts["truncated"] += len(text) > self.max_tool_response_length
        return self._clean(answer, counts)

    def _clean(
        self, answer: tuple[ToolResponse, float, dict], counts: dict[str, int]
    ) -> tuple[ToolResponse, float, dict]:
        response, reward, info = answer
        if response.text:
            text = clean(response.text, build_token_pattern(self.tokenizer))
            counts["cleaned"] += text != response.text
            response = response.model_copy(update={"text": text})
        return response, reward, info
