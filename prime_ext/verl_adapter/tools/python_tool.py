# SPDX-License-Identifier: Apache-2.0
"""Python as a tool of verl's tool agent loop: programs run in the sandbox, never in the worker.

tools:
  - class_name: prime_ext.verl_adapter.tools.python_tool.PythonTool
    config: {type: native, seconds: 5, rewards: {failed: -0.1}}
"""

import asyncio
import functools
from collections.abc import Mapping
from typing import Any

from verl.tools.schemas import OpenAIFunctionToolSchema

from prime_ext.verifiers.sandbox.client import Ending, Execution, Limits, Sandbox
from prime_ext.verl_adapter.tools.counted_tool import CountedTool, build_schema

OUTCOMES = ("malformed", *(str(ending) for ending in Ending))

SCHEMA = build_schema(
    "python",
    "Runs a Python program and returns what it prints. Nothing is kept between calls.",
    "code",
    "the program; print what you want to see",
)


@functools.cache
def _sandbox() -> Sandbox:
    # There is one in every process of verl's agent loop.
    return Sandbox(workers=2)


class PythonTool(CountedTool):
    """``python(code)``. The answer is the output of the program, and its error.

    ``config`` may have ``rewards``, and ``seconds`` (10) that a run may take. ``ValueError``: a
    wrong outcome or limit.
    """

    schema = SCHEMA
    known_outcomes = OUTCOMES

    def __init__(
        self, config: Mapping[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None
    ):
        super().__init__(config, tool_schema)
        self._limits = Limits(seconds=config.get("seconds", 10.0))
        self._sandbox = _sandbox()

    async def run(self, text: str, agent_data: Any) -> tuple[str, str]:
        execution = await asyncio.wrap_future(self._sandbox.submit(text, limits=self._limits))
        return str(execution.ending), _describe_result(execution, self._limits)


def _describe_result(execution: Execution, limits: Limits) -> str:
    printed = execution.stdout.decode("utf-8", "replace").rstrip()
    last = (execution.stderr.strip().splitlines() or [f"exit code {execution.exit_code}"])[-1]
    problem = {
        Ending.FINISHED: "",
        Ending.FAILED: last,
        Ending.TIMEOUT: f"Error: stopped after {limits.seconds:g} seconds",
        Ending.OUT_OF_MEMORY: "Error: out of memory",
        Ending.OUTPUT_LIMIT: "Error: too much output",
        Ending.MISBEHAVED: "Error: too many threads or files",
        Ending.SANDBOX_FAILURE: "Error: the program could not be run",
    }[execution.ending]
    return "\n".join(filter(None, [printed, problem])) or "(nothing was printed)"
