# SPDX-License-Identifier: Apache-2.0
"""Cost of a turn in the loop of environments, and in the loops of tools, verl's and ours.

    python tests/benchmarks/environment_loop.py

All loops play the same number of episodes at once with a policy that answers immediately with as
many tokens, and an environment or a tool that answers with as many, so what is left is the loop:
templates, masks, and the environment's process. The tool runs in the loop's process. Episodes of
two lengths give the milliseconds of a turn (the slope) and of the rest of an episode, its process
and its first turn included, by the clock and of the loop's process alone. Loops run in turn; a
ratio is taken within each repetition. Prints and writes environment_loop.json.
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

KINDS = ("tool_agent", "bounded_tool_agent", "environment_agent")
# By the clock, and of the loop's process alone.
CLOCKS = ("wall", "process")
Seconds = dict[str, float]
Times = dict[str, dict[str, list[float]]]
# Turns of an episode.
SHORT, LONG = 4, 40
CALL = f"{CALL_OPEN}1+1{CALL_CLOSE}"
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}}
SCHEMA = {
    "type": "function",
    "function": {"name": "calculator", "description": "", "parameters": PARAMETERS},
}


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


def play(kind: str, turns: int, episodes: int, config: Any, tokenizer: Any) -> Seconds:
    """Return the seconds of an episode when several run at once."""
    extra = {"environment": f"repeat_environment:Repeat:turns={turns}", "seed": 0}

    async def run() -> Seconds:
        loops = [build(kind, turns, config, tokenizer) for _ in range(episodes)]
        rows = (
            loop.run({}, raw_prompt=[{"role": "user", "content": "1+1?"}], extra_info=extra)
            for loop in loops
        )
        started = time.perf_counter(), time.process_time()
        outputs = await asyncio.gather(*rows)
        ended = time.perf_counter(), time.process_time()
        assert {output.num_turns for output in outputs} == {2 * turns}
        return {
            name: (after - before) / episodes
            for name, before, after in zip(CLOCKS, started, ended, strict=True)
        }

    return asyncio.run(run())


def measure(options: Namespace) -> dict[str, Any]:
    """Return the milliseconds of a turn and of the rest of an episode, and ratios, by clock."""
    made = compose_config("prime_trainer_cpu", WORDS), build_tokenizer()
    turn: Times = {clock: {kind: [] for kind in KINDS} for clock in CLOCKS}
    rest: Times = {clock: {kind: [] for kind in KINDS} for clock in CLOCKS}
    for repetition in range(options.repetitions + 1):
        for kind in KINDS:
            short, long = (play(kind, turns, options.episodes, *made) for turns in (SHORT, LONG))
            if not repetition:  # It imports and caches.
                continue
            for clock in CLOCKS:
                slope = (long[clock] - short[clock]) / (LONG - SHORT)
                turn[clock][kind].append(1000 * slope)
                rest[clock][kind].append(1000 * (short[clock] - SHORT * slope))
    ratios: Times = {
        clock: {
            f"{kind} over {KINDS[0]}": [
                ours / verls for ours, verls in zip(times[kind], times[KINDS[0]], strict=True)
            ]
            for kind in KINDS[1:]
        }
        for clock, times in turn.items()
    }

    def summarize(values: list[float]) -> dict[str, float]:
        error = statistics.stdev(values) / len(values) ** 0.5
        return {"mean": round(statistics.mean(values), 3), "standard_error": round(error, 3)}

    return {
        clock: {
            name: {kind: summarize(values) for kind, values in table[clock].items()}
            for name, table in (
                ("ms of a turn", turn),
                ("ms of the rest of an episode", rest),
                ("ratios of turns", ratios),
            )
        }
        for clock in CLOCKS
    }


if __name__ == "__main__":
    arguments = harness.parser(__doc__, episodes=64, repetitions=8).parse_args()
    harness.record(arguments, measure(arguments))
