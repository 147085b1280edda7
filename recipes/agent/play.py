# SPDX-License-Identifier: Apache-2.0
"""Episodes of a model with its tools, by the agent loop that training uses, and how good they are.

    python -m recipes.agent.play --model outputs/agent_quickstart/sft \
        --data outputs/agent_quickstart/data/test.parquet --output outputs/agent_quickstart/evaluation_before.json
"""

import os

# verl asks for its platform when it is imported.
os.environ.setdefault("VERL_PLATFORM", "cpu")

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm.asyncio import tqdm
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap, ToolListWrap
from verl.tools.tool_registry import load_all_tools
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.config import HFModelConfig
from verl.workers.rollout.replica import TokenOutput

from prime_ext.config.compose import compose_config
from prime_ext.cpu.agent_loop import SeededToolAgentLoop
from prime_ext.cpu.rollout_server import TransformersServer
from prime_ext.generate.local_model import find_model
from prime_ext.generate.tool_agent_loop import FAILED
from prime_ext.generate.tool_agent_loop import FIELD as CALLS
from prime_ext.tasks.calculator_tool import FIELD as OUTCOMES_FIELD
from prime_ext.tasks.last_digit_chain import outcome_reward
from prime_ext.utils.files import write_json
from recipes.quickstart.evaluate import HeldOutProblem, command_line, load_problems, proportion

TOOLS = Path(__file__).parent / "tools.yaml"
OVERRIDES = Path(__file__).parent / "rollout.txt"


class Episode(NamedTuple):
    """What the policy and its tools wrote.

    Attributes:
        problem: what was asked.
        prompt_ids: its tokens.
        response_ids: tokens of the policy and the tools.
        own: which of them are the policy's.
        text: what the policy and the tools wrote.
        right: whether the verifier finds the answer.
        calls: of tools.
        failed: calls without a result.
    """

    problem: HeldOutProblem
    prompt_ids: list[int]
    response_ids: list[int]
    own: list[bool]
    text: str
    right: bool
    calls: int
    failed: int


class _Client:
    """What the agent loop asks for tokens: a server in this process."""

    def __init__(self, server: TransformersServer) -> None:
        self._server = server

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **ignored: Any
    ) -> TokenOutput:
        return await self._server.generate(prompt_ids, sampling_params, request_id)


async def play(
    model: str | Path, problems: Sequence[HeldOutProblem], *, seed: int, temperature: float, name: str = "episodes"
) -> list[Episode]:
    """One episode for each problem; temperature 0 is greedy. The same seed gives the same episodes."""
    folder = find_model(str(Path(model).resolve()))
    words = [f"actor_rollout_ref.model.path={folder}", f"actor_rollout_ref.rollout.seed={seed}"]
    words.append("actor_rollout_ref.rollout.load_format=auto")
    config = compose_config("prime_trainer_cpu", [*OVERRIDES.read_text().split(), *words])
    tokenizer, rollout = AutoTokenizer.from_pretrained(folder), config.actor_rollout_ref.rollout
    server = TransformersServer(
        rollout, HFModelConfig(path=str(folder), override_config={"attn_implementation": "sdpa"})
    )
    with contextlib.redirect_stdout(None):  # tools print their schema
        tools = load_all_tools(str(TOOLS), None)

    async def one(index: int, problem: HeldOutProblem) -> AgentLoopOutput:
        loop = SeededToolAgentLoop(
            trainer_config=DictConfigWrap(config),
            server_manager=_Client(server),
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(config.data),
            tools=ToolListWrap(tools),
            hf_model_type=server.model.config.model_type,
        )
        prompt = [{"role": "user", "content": problem.prompt}]
        sampling = {"temperature": temperature, "logprobs": False}
        return await loop.run(sampling, raw_prompt=prompt, global_steps=0, session_id=0, index=index)

    outputs = await tqdm.gather(*(one(*item) for item in enumerate(problems)), desc=name, unit="episode")
    return [_episode(tokenizer, *pair) for pair in zip(problems, outputs, strict=True)]


def _episode(tokenizer: Any, problem: HeldOutProblem, output: AgentLoopOutput) -> Episode:
    own = [bool(flag) for flag in output.response_mask]
    # As in training: the verifier reads the whole response.
    text = tokenizer.decode(output.response_ids, skip_special_tokens=True)
    counts = output.extra_fields.get(CALLS, {})
    outcomes = output.extra_fields.get(OUTCOMES_FIELD, {})
    failed = sum(counts.get(kind, 0) for kind in FAILED) + sum(outcomes.values()) - outcomes.get("result", 0)
    return Episode(
        problem,
        list(output.prompt_ids),
        list(output.response_ids),
        own,
        text,
        outcome_reward(text, problem.ground_truth) == 1.0,
        counts.get("calls", 0),
        failed,
    )


def summarise(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Accuracy with its standard error, calls per episode, share of failed calls, ``outcomes`` as 0 and 1."""
    outcomes = "".join("1" if episode.right else "0" for episode in episodes)
    calls = sum(episode.calls for episode in episodes)
    return {
        **proportion(outcomes.count("1"), len(outcomes)),
        "calls_per_episode": calls / len(episodes),
        "failed_calls": sum(episode.failed for episode in episodes) / calls if calls else 0.0,
        "tokens_per_episode": float(np.mean([sum(episode.own) for episode in episodes])),
        "outcomes": outcomes,
    }


def evaluate(model: Path, data: Path, *, limit: int | None = None, seed: int = 0) -> dict[str, Any]:
    """Sampled at temperature 1, and greedy."""
    started, problems = time.time(), load_problems(data, limit)
    found = {
        name: summarise(asyncio.run(play(model, problems, seed=seed, temperature=temperature, name=name)))
        for name, temperature in (("temperature_1", 1.0), ("greedy", 0.0))
    }
    about = {"model": str(model), "data": str(data), "n_problems": len(problems), "seed": seed}
    return {**about, **found, "seconds": round(time.time() - started, 1)}


def main() -> None:
    arguments = command_line(__doc__)
    result = evaluate(arguments.model, arguments.data, limit=arguments.limit, seed=arguments.seed)
    write_json(arguments.output, result)
    print(f"Accuracy on {result['n_problems']:,} held-out problems ({arguments.output}):")
    for name in ("temperature_1", "greedy"):
        row = result[name]
        print(
            f"{name:>14}: {100 * row['accuracy']:.1f} ± {100 * row['standard_error']:.1f} %, "
            f"{row['calls_per_episode']:.2f} calls an episode, {100 * row['failed_calls']:.1f} % of them failed"
        )


if __name__ == "__main__":
    main()
