# SPDX-License-Identifier: Apache-2.0
"""Base of this package's tools, which take a text; outcomes are counted, and may be rewarded."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse


def build_schema(name: str, description: str, argument: str, meaning: str) -> dict[str, Any]:
    """Return the schema of a tool with one argument, a text."""
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": meaning}},
        "required": [argument],
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


class CountedTool(BaseTool):
    """A tool of verl's agent loop that counts its calls by outcome.

    The counts are in a rollout's ``extra_fields``, under the tool's name. ``config.rewards`` has
    rewards by outcome, else 0, which become verl's ``tool_rewards``. ``ValueError``: an outcome is
    not one of ``known_outcomes``, of which ``malformed`` is one.
    """

    schema: Mapping[str, Any]
    known_outcomes: Sequence[str]

    def __init__(
        self, config: Mapping[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None
    ):
        super().__init__(
            dict(config), tool_schema or OpenAIFunctionToolSchema.model_validate(self.schema)
        )
        self.field = self.schema["function"]["name"]
        self.rewards = {
            str(name): float(value) for name, value in (config.get("rewards") or {}).items()
        }
        if unknown := sorted(set(self.rewards) - set(self.known_outcomes)):
            known = ", ".join(self.known_outcomes)
            raise ValueError(f"rewards.{unknown[0]} of the tool {self.field} is not one of {known}")

    async def execute(
        self, instance_id: str, parameters: Any, **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Answer a call of any JSON; return the answer, its reward and ``{"outcome": ...}``."""
        (argument,) = self.schema["function"]["parameters"]["required"]
        text = parameters.get(argument) if isinstance(parameters, dict) else None
        data = kwargs.get("agent_data")
        outcome = "malformed"
        answer = f"Error: give one argument, {argument}, a text"
        if isinstance(text, str):
            outcome, answer = await self.run(text, data)
        if data is not None:
            data.extra_fields.setdefault(self.field, dict.fromkeys(self.known_outcomes, 0))[
                outcome
            ] += 1
        return ToolResponse(text=answer), self.rewards.get(outcome, 0.0), {"outcome": outcome}

    @abstractmethod
    async def run(self, text: str, agent_data: Any) -> tuple[str, str]:
        """Return the outcome of a call with this text, and the answer to the policy."""
