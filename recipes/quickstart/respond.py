# SPDX-License-Identifier: Apache-2.0
"""Batched answers of a model to the problems of a parquet file, on the CPU."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from prime_ext.generate.generation import BatchedGenerator, GenerationRequest

MAX_RESPONSE_LENGTH = 48
BATCH_SIZE = 500


@dataclass(frozen=True)
class HeldOutProblem:
    """One row of a parquet file in verl's RL schema."""

    prompt: str
    ground_truth: str


@dataclass(frozen=True)
class Response:
    """A sampled response: its tokens (``<eos>`` included, if it got that far) and its text without special tokens."""

    token_ids: list[int]
    text: str
    finished: bool


def load_model(path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a Hugging Face folder in float32, in evaluation mode.

    Raises:
        FileNotFoundError: the folder has no ``config.json``.
    """
    if not (Path(path) / "config.json").is_file():
        raise FileNotFoundError(f"{path} is not a Hugging Face model folder: it has no config.json")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(path)


def load_problems(path: str | Path, limit: int | None = None) -> list[HeldOutProblem]:
    """Read the problems of a parquet file written by ``data.py``, the first ``limit`` of them if given."""
    rows = pq.read_table(path, columns=["prompt", "reward_model"]).slice(0, limit).to_pylist()
    if not rows:
        raise ValueError(f"{path} has no rows")
    return [HeldOutProblem(row["prompt"][0]["content"], row["reward_model"]["ground_truth"]) for row in rows]


def prompt_token_ids(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Token ids of a question as the rollout sees them."""
    messages = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)


def respond(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: list[HeldOutProblem],
    *,
    temperature: float,
    seed: int,
    description: str = "responses",
    max_response_length: int = MAX_RESPONSE_LENGTH,
) -> list[Response]:
    """One response per problem; temperature 0 is greedy. Problem i always gets the same random numbers for a seed."""
    generator = BatchedGenerator(
        model,
        eos_token_ids=[tokenizer.eos_token_id],
        pad_token_id=tokenizer.pad_token_id,
        n_tokens=len(tokenizer),
        max_batch_size=BATCH_SIZE,
    )
    responses: list[Response] = []
    with tqdm(total=len(problems), desc=description) as progress:
        for first in range(0, len(problems), BATCH_SIZE):
            requests = [
                GenerationRequest(
                    prompt_ids=prompt_token_ids(tokenizer, problem.prompt),
                    max_new_tokens=max_response_length,
                    temperature=temperature,
                    seed=seed * 1_000_003 + index,
                )
                for index, problem in enumerate(problems[first : first + BATCH_SIZE], start=first)
            ]
            for output in generator.generate(requests):
                text = tokenizer.decode(output.token_ids, skip_special_tokens=True)
                responses.append(Response(output.token_ids, text, output.stop_reason == "stop"))
            progress.update(len(requests))
    return responses
