# SPDX-License-Identifier: Apache-2.0
"""What this package's tools share: each call has an outcome, which may be worth something and is counted."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse


class CountedTool(BaseTool):
    """A tool of verl's agent loop whose calls end in one of a few outcomes.

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

    def answered(self, outcome: str, text: str, agent_data: Any) -> tuple[ToolResponse, float, dict[str, Any]]:
        """What ``execute`` returns of a call: answer, reward and outcome. The trajectory counts it."""
        if agent_data is not None:
            agent_data.extra_fields.setdefault(self.field, dict.fromkeys(self.known_outcomes, 0))[outcome] += 1
        return ToolResponse(text=text), self.rewards.get(outcome, 0.0), {"outcome": outcome}
