# SPDX-License-Identifier: Apache-2.0
"""What this package's tools share: a text goes in, and each call has an outcome, which may be worth something."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse


def schema_of(name: str, description: str, argument: str, meaning: str) -> dict[str, Any]:
    """The schema of a tool with one argument, a text."""
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": meaning}},
        "required": [argument],
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


class CountedTool(BaseTool):
    """A tool of verl's agent loop whose calls end in one of a few outcomes; ``malformed`` is one.

    Args:
        config: ``rewards``: what a call is worth by outcome, 0 where nothing is said. Each call's reward is one of
            verl's ``tool_rewards``.
        tool_schema: None for that of the class.

    Raises:
        ValueError: a reward of an outcome that does not exist.
    """

    # What it is called in messages, what it takes, how its calls may end, and the field of a rollout's extra_fields
    # with the number of calls by outcome.
    title: str
    schema: Mapping[str, Any]
    known_outcomes: Sequence[str]
    field: str

    def __init__(self, config: Mapping[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None):
        super().__init__(dict(config), tool_schema or OpenAIFunctionToolSchema.model_validate(self.schema))
        self.rewards = {str(name): float(value) for name, value in (config.get("rewards") or {}).items()}
        if unknown := sorted(set(self.rewards) - set(self.known_outcomes)):
            raise ValueError(f"rewards.{unknown[0]} of the {self.title} is not one of {', '.join(self.known_outcomes)}")

    async def execute(
        self, instance_id: str, parameters: Any, **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """One call; ``parameters`` is whatever JSON the policy wrote. Nothing that it wrote raises here.

        Returns:
            the answer, its reward, and ``{"outcome": ...}``, which the trajectory counts.
        """
        (argument,) = self.schema["function"]["parameters"]["required"]
        text = parameters.get(argument) if isinstance(parameters, dict) else None
        data = kwargs.get("agent_data")
        outcome, told = "malformed", f"Error: give one argument, {argument}, a text"
        if isinstance(text, str):
            outcome, told = await self.run(text, data)
        if data is not None:
            data.extra_fields.setdefault(self.field, dict.fromkeys(self.known_outcomes, 0))[outcome] += 1
        return ToolResponse(text=told), self.rewards.get(outcome, 0.0), {"outcome": outcome}

    @abstractmethod
    async def run(self, text: str, agent_data: Any) -> tuple[str, str]:
        """The outcome of a call with this text, and what the policy is told."""
