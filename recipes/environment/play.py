# SPDX-License-Identifier: Apache-2.0
"""Play the held-out episodes of an environment by the agent loop of training, and measure them.

    python -m recipes.environment.play --model outputs/environment_quickstart/sft \\
        --data outputs/environment_quickstart/data/test.parquet \\
        --output outputs/environment_quickstart/evaluation_before.json
"""

import os

# verl reads its platform when it is imported.
os.environ.setdefault("VERL_PLATFORM", "cpu")

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from prime_ext.verl_adapter.cpu.seeded_loop import SeededEnvironmentAgentLoop
from prime_ext.verl_adapter.environment_loop import FIELD, PROGRESS
from recipes.agent.play import run_loop
from recipes.quickstart.evaluate import accuracy, evaluate_decodings, write_evaluation

OVERRIDES = Path(__file__).parent / "rollout.txt"


class Played(NamedTuple):
    """A played episode: its tokens, and what the environment said of it."""

    prompt: str
    prompt_ids: list[int]
    response_ids: list[int]
    is_policy: list[bool]  # tokens of the response that are the policy's
    text: str
    right: bool
    gains: list[float]  # progress of each turn
    invalid: int


def load_rows(data: str | Path, limit: int | None = None) -> list[dict[str, Any]]:
    """Read the rows of a file, or its first ``limit``."""
    return pq.read_table(data, columns=["prompt", "extra_info"]).slice(0, limit).to_pylist()


def play(
    model: str | Path,
    rows: Sequence[Mapping[str, Any]],
    *,
    seed: int,
    temperature: float,
    name: str = "episodes",
) -> list[Played]:
    """Play one episode per row; see :func:`recipes.agent.play.run_loop`."""
    loop_rows = [{"raw_prompt": row["prompt"], "extra_info": row["extra_info"]} for row in rows]
    how: dict[str, Any] = {"seed": seed, "temperature": temperature, "name": name}
    tokenizer, rollouts = run_loop(SeededEnvironmentAgentLoop, model, loop_rows, OVERRIDES, **how)
    return [
        Played(
            row["prompt"][-1]["content"],
            list(rollout.prompt_ids),
            list(rollout.response_ids),
            is_policy=[bool(flag) for flag in rollout.response_mask],
            text=tokenizer.decode(rollout.response_ids, skip_special_tokens=True),
            right=rollout.reward_score == 1.0,
            gains=rollout.extra_fields[PROGRESS],
            invalid=rollout.extra_fields[FIELD]["invalid"],
        )
        for row, rollout in zip(rows, rollouts, strict=True)
    ]


def summarize(episodes: Sequence[Played]) -> dict[str, Any]:
    """Return accuracy and its standard error, turns per episode, share of invalid texts."""
    turns = sum(len(episode.gains) for episode in episodes)
    return {
        **accuracy([episode.right for episode in episodes]),
        "turns_per_episode": turns / len(episodes),
        "invalid_texts": sum(episode.invalid for episode in episodes) / max(1, turns),
        "useful_turns": float(np.mean([gain > 0 for played in episodes for gain in played.gains])),
    }


def evaluate(model: Path, data: Path, *, limit: int | None = None, seed: int = 0) -> dict[str, Any]:
    """Evaluate a model on the episodes of a file."""
    rows = load_rows(data, limit)

    def measure(name: str, temperature: float) -> dict[str, Any]:
        return summarize(play(model, rows, seed=seed, temperature=temperature, name=name))

    return evaluate_decodings(measure, model, data, len(rows), seed)


if __name__ == "__main__":
    write_evaluation(__doc__, evaluate)
