# SPDX-License-Identifier: Apache-2.0
"""Milliseconds of a turn in the loop of environments, and in the loops of tools, verl's and ours.

    python tests/benchmarks/environment_loop.py

All loops play the same number of episodes at once with a policy that answers immediately with as
many tokens, and an environment or a tool that answers with as many, so what is left is the loop:
templates, masks, and the environment's process. The tool runs in the loop's process. Episodes of
two lengths give the milliseconds of a turn (the slope) and of the rest of an episode, its process
and its first turn included. Loops run in turn; a ratio is taken within each repetition. Prints and
writes environment_loop.json.
"""

import asyncio
import statistics
import time
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import harness
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.tools.function_tool import FunctionTool
from verl.tools.schemas import OpenAIFunctionToolSchema
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from prime_ext.config.compose import compose_config
from prime_ext.verl_adapter.environment_loop import EnvironmentAgentLoop
from prime_ext.verl_adapter.tool_agent_loop import BoundedToolAgentLoop
from recipes.agent.calculator_task import CALL_CLOSE, CALL_OPEN, build_tokenizer

# Turns of an episode.
SHORT, LONG = 4, 16
CALL = f"{CALL_OPEN}1+1{CALL_CLOSE}"
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}}
SCHEMA = {
    "type": "function",
    "function": {"name": "calculator", "description": "", "parameters": PARAMETERS},
}


class Repeat:
    """An environment that answers each text with 2, and ends after some turns."""

    def __init__(self, turns: int) -> None:
        self._left = turns

    def reset(self, seed: int) -> str:
        return "1+1?"

    def step(self, text: str) -> tuple[str, float, bool, dict[str, Any]]:
        self._left -= 1
        return "2", 0.0, not self._left, {"success": 0.0}

    def close(self) -> None:
        pass


WORDS = [
    "data.max_response_length=2048",
    "data.max_prompt_length=32",
    "actor_rollout_ref.model.path=none",
]


def build(kind: str, turns: int, config: Any, tokenizer: Any) -> Any:
    """Return a loop whose policy calls its tool in all turns but the last."""
    texts = [CALL] * (turns - 1) + [CALL[:-1]]
    ids = [
        [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        for text in texts
    ]
    written = iter(ids)

    async def generate(request_id: str, **_: Any) -> TokenOutput:
        tokens = next(written)
        return TokenOutput(
            token_ids=tokens,
            log_probs=[-1.0] * len(tokens),
            stop_reason="completed",
            extra_fields={"global_steps": 1},
        )

    common: dict[str, Any] = {
        "trainer_config": DictConfigWrap(config),
        "tokenizer": tokenizer,
        "processor": None,
        "dataset_cls": RLHFDataset,
        "data_config": DictConfigWrap(config.data),
        "server_manager": SimpleNamespace(generate=generate),
    }
    if kind == "environment_agent":
        return EnvironmentAgentLoop(**common)
    schema = OpenAIFunctionToolSchema.model_validate(SCHEMA)
    tools = ToolListWrap([FunctionTool("calculator", lambda expression: "2", schema)])
    loop = {"tool_agent": ToolAgentLoop, "bounded_tool_agent": BoundedToolAgentLoop}[kind]
    return loop(**common, tools=tools)


def play(kind: str, turns: int, episodes: int, config: Any, tokenizer: Any) -> float:
    """Return the seconds of an episode when several run at once."""
    extra = {"environment": f"environment_loop:Repeat:turns={turns}", "seed": 0}

    async def run() -> float:
        loops = [build(kind, turns, config, tokenizer) for _ in range(episodes)]
        rows = (
            loop.run({}, raw_prompt=[{"role": "user", "content": "1+1?"}], extra_info=extra)
            for loop in loops
        )
        started = time.perf_counter()
        outputs = await asyncio.gather(*rows)
        seconds = time.perf_counter() - started
        assert {output.num_turns for output in outputs} == {2 * turns}
        return seconds / episodes

    return asyncio.run(run())


def measure(options: Namespace) -> dict[str, Any]:
    """Return the milliseconds of a turn and of the rest of an episode, and ratios."""
    kinds = ("tool_agent", "bounded_tool_agent", "environment_agent")
    turn: dict[str, list[float]] = {kind: [] for kind in kinds}
    rest: dict[str, list[float]] = {kind: [] for kind in kinds}
    made = compose_config("prime_trainer_cpu", WORDS), build_tokenizer()
    for repetition in range(options.repetitions + 1):
        for kind in kinds:
            short, long = (play(kind, turns, options.episodes, *made) for turns in (SHORT, LONG))
            slope = (long - short) / (LONG - SHORT)
            if repetition:  # The first one imports and caches.
                turn[kind].append(1000 * slope)
                rest[kind].append(1000 * (short - SHORT * slope))
    ratios = {
        f"{kind} over tool_agent": [
            ours / verls for ours, verls in zip(turn[kind], turn["tool_agent"], strict=True)
        ]
        for kind in kinds[1:]
    }

    def summarize(values: list[float]) -> dict[str, float]:
        error = statistics.stdev(values) / len(values) ** 0.5
        return {"mean": round(statistics.mean(values), 3), "standard_error": round(error, 3)}

    return {
        name: {kind: summarize(values) for kind, values in table.items()}
        for name, table in (
            ("ms of a turn", turn),
            ("ms of the rest of an episode", rest),
            ("ratios of turns", ratios),
        )
    }


if __name__ == "__main__":
    arguments = harness.parser(__doc__, episodes=64, repetitions=8).parse_args()
    harness.record(arguments, measure(arguments))
