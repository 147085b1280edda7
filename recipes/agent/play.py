# SPDX-License-Identifier: Apache-2.0
"""Play episodes of a model with its tools, by the agent loop of training, and measure them.

    python -m recipes.agent.play --model outputs/agent_quickstart/sft \\
        --data outputs/agent_quickstart/data/test.parquet \\
        --output outputs/agent_quickstart/evaluation_before.json
"""

import os

# verl reads its platform when it is imported.
os.environ.setdefault("VERL_PLATFORM", "cpu")

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from tqdm.asyncio import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopOutput,
    DictConfigWrap,
    ToolListWrap,
)
from verl.tools.tool_registry import load_all_tools
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.config import HFModelConfig
from verl.workers.rollout.replica import TokenOutput

from prime_ext.config.compose import compose_config
from prime_ext.generate.local_model import find_model
from prime_ext.tasks.last_digit_chain import outcome_reward
from prime_ext.verl_adapter.cpu.rollout_server import TransformersServer
from prime_ext.verl_adapter.cpu.seeded_loop import SeededToolAgentLoop
from prime_ext.verl_adapter.tool_agent_loop import FAILED
from prime_ext.verl_adapter.tool_agent_loop import FIELD as CALLS
from prime_ext.verl_adapter.tools.calculator_tool import FIELD as OUTCOMES_FIELD
from prime_ext.verl_adapter.tools.calculator_tool import OUTCOMES
from recipes.quickstart.evaluate import (
    HeldOutProblem,
    accuracy,
    evaluate_decodings,
    load_problems,
    write_evaluation,
)
from recipes.run_statistics import get_curve

TOOLS = Path(__file__).parent / "tools.yaml"
OVERRIDES = Path(__file__).parent / "rollout.txt"


class Episode(NamedTuple):
    """An episode: the tokens of policy and tools, and whether the verifier accepts the answer."""

    problem: HeldOutProblem
    prompt_ids: list[int]
    response_ids: list[int]
    is_policy: list[bool]  # tokens of the response that are the policy's
    text: str
    right: bool
    calls: int
    failed: int  # calls without a result


def run_loop(
    loop: type[AgentLoopBase],
    model: str | Path,
    rows: Sequence[Mapping[str, Any]],
    overrides: Path,
    *,
    seed: int,
    temperature: float,
    name: str,
    **options: Any,
) -> tuple[PreTrainedTokenizerBase, list[AgentLoopOutput]]:
    """Run an agent loop once per row, reproducible by ``seed``; return tokenizer and rollouts.

    ``overrides`` is a file with the configuration's words, ``options`` are the loop's. Temperature
    0 is greedy.
    """
    folder = find_model(str(Path(model).resolve()))
    words = [f"actor_rollout_ref.model.path={folder}", f"actor_rollout_ref.rollout.seed={seed}"]
    words.append("actor_rollout_ref.rollout.load_format=auto")
    config = compose_config("prime_trainer_cpu", [*overrides.read_text().split(), *words])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rollout = config.actor_rollout_ref.rollout
    model_config = HFModelConfig(path=str(folder), override_config={"attn_implementation": "sdpa"})
    server = TransformersServer(rollout, model_config)

    async def generate(
        request_id: str, *, prompt_ids: list[int], sampling_params: dict, **_: Any
    ) -> TokenOutput:
        return await server.generate(prompt_ids, sampling_params, request_id)

    async def run_one(index: int, row: Mapping[str, Any]) -> AgentLoopOutput:
        made = loop(
            trainer_config=DictConfigWrap(config),
            server_manager=SimpleNamespace(generate=generate),
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(config.data),
            hf_model_type=server.model.config.model_type,
            **options,
        )
        sampling = {"temperature": temperature, "logprobs": False}
        return await made.run(sampling, global_steps=0, session_id=0, index=index, **row)

    async def run_all() -> list[AgentLoopOutput]:
        return await tqdm.gather(
            *(run_one(*item) for item in enumerate(rows)), desc=name, unit="episode"
        )

    return tokenizer, asyncio.run(run_all())


def play(
    model: str | Path,
    problems: Sequence[HeldOutProblem],
    *,
    seed: int,
    temperature: float,
    name: str = "episodes",
) -> list[Episode]:
    """Play one episode per problem; see :func:`run_loop`."""
    with contextlib.redirect_stdout(None):  # tools print their schema
        tools = ToolListWrap(load_all_tools(str(TOOLS), None))
    rows = [{"raw_prompt": [{"role": "user", "content": problem.prompt}]} for problem in problems]
    how = {"seed": seed, "temperature": temperature, "name": name, "tools": tools}
    tokenizer, rollouts = run_loop(SeededToolAgentLoop, model, rows, OVERRIDES, **how)

    def read(problem: HeldOutProblem, output: AgentLoopOutput) -> Episode:
        # As in training: the verifier reads the complete response.
        text = tokenizer.decode(output.response_ids, skip_special_tokens=True)
        counts = output.extra_fields.get(CALLS, {})
        outcomes = output.extra_fields.get(OUTCOMES_FIELD, {})
        return Episode(
            problem,
            list(output.prompt_ids),
            list(output.response_ids),
            is_policy=[bool(flag) for flag in output.response_mask],
            text=text,
            right=outcome_reward(text, problem.ground_truth) == 1.0,
            calls=counts.get("calls", 0),
            failed=sum(counts.get(kind, 0) for kind in FAILED)
            + sum(outcomes.values())
            - outcomes.get("result", 0),
        )

    return [read(*pair) for pair in zip(problems, rollouts, strict=True)]


def summarize(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return accuracy, its standard error, calls and tokens per episode, share of failed calls."""
    calls = sum(episode.calls for episode in episodes)
    return {
        **accuracy([episode.right for episode in episodes]),
        "calls_per_episode": calls / len(episodes),
        "failed_calls": sum(episode.failed for episode in episodes) / calls if calls else 0.0,
        "tokens_per_episode": float(np.mean([sum(episode.is_policy) for episode in episodes])),
    }


def measure_failed_calls(
    metrics: Mapping[int, Mapping[str, float]],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps, and the share of calls of the calculator that had no result."""
    counts = {name: get_curve(metrics, f"agent/{OUTCOMES_FIELD}/{name}") for name in OUTCOMES}
    every_S = np.sum([values for _, values in counts.values()], axis=0)
    return counts["result"][0], 1 - counts["result"][1] / np.maximum(every_S, 1e-9)


def evaluate(model: Path, data: Path, *, limit: int | None = None, seed: int = 0) -> dict[str, Any]:
    """Evaluate a model on the problems of a file."""
    problems = load_problems(data, limit)

    def measure(name: str, temperature: float) -> dict[str, Any]:
        return summarize(play(model, problems, seed=seed, temperature=temperature, name=name))

    return evaluate_decodings(measure, model, data, len(problems), seed)


if __name__ == "__main__":
    write_evaluation(__doc__, evaluate)
