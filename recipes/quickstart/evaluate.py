# SPDX-License-Identifier: Apache-2.0
"""Accuracy of a model on the held-out problems: sampled at temperature 1 (seeded) and greedy.

    python -m recipes.quickstart.evaluate --model outputs/quickstart/sft \
        --data outputs/quickstart/data/test.parquet --output outputs/quickstart/evaluation_before.json
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from prime_ext.generate.generation import BatchedGenerator, GenerationRequest
from prime_ext.generate.local_model import find_model
from prime_ext.tasks import last_digit_chain as task
from prime_ext.utils.files import write_json
from recipes.command_line import read_options

MAX_RESPONSE_LENGTH = 48
BATCH_SIZE = 500
DECODINGS = {"temperature_1": 1.0, "greedy": 0.0}


class HeldOutProblem(NamedTuple):
    """One row of a parquet file in verl's RL schema."""

    prompt: str
    ground_truth: str


class Response(NamedTuple):
    """A sampled response: its tokens (``<eos>`` included, if it got that far) and its text without special tokens."""

    token_ids: list[int]
    text: str
    finished: bool


def load_model(path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a Hugging Face folder, or a checkpoint of verl, in float32, in evaluation mode.

    ``BackendError``: the folder is neither.
    """
    folder = find_model(str(Path(path).resolve())).path
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def load_problems(path: str | Path, limit: int | None = None) -> list[HeldOutProblem]:
    """Read the problems of a parquet file written by ``data.py``, the first ``limit`` of them if given."""
    rows = pq.read_table(path, columns=["prompt", "reward_model"]).slice(0, limit).to_pylist()
    if not rows:
        raise ValueError(f"{path} has no rows")
    return [HeldOutProblem(row["prompt"][0]["content"], row["reward_model"]["ground_truth"]) for row in rows]


def prompt_token_ids(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Return the token ids of a question as the rollout sees them."""
    messages = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)


def respond(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[HeldOutProblem],
    *,
    temperature: float,
    seed: int,
    description: str = "responses",
    max_response_length: int = MAX_RESPONSE_LENGTH,
) -> list[Response]:
    """Sample one response per problem; temperature 0 is greedy. Problem i has the same random numbers for a seed."""
    generator = BatchedGenerator(
        model,
        eos_token_ids=[tokenizer.eos_token_id],
        pad_token_id=tokenizer.pad_token_id,
        n_tokens=len(tokenizer),
        max_batch_size=BATCH_SIZE,
    )
    responses: list[Response] = []
    for first in tqdm(range(0, len(problems), BATCH_SIZE), desc=description):
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
    return responses


def accuracy(right: Sequence[bool]) -> dict[str, Any]:
    """Return the accuracy, its binomial standard error sqrt(p (1 - p) / n), and ``outcomes``, a 1 or 0 per problem."""
    share = sum(right) / len(right)
    outcomes = "".join("1" if one else "0" for one in right)
    error = math.sqrt(share * (1 - share) / len(right))
    return {"accuracy": share, "standard_error": error, "n": len(right), "outcomes": outcomes}


def grade(problems: Sequence[HeldOutProblem], responses: Sequence[Response]) -> dict[str, Any]:
    """Grade one response per problem; an unfinished one that shows its answer counts too.

    ``steps_right`` is the fraction of locally right steps (see ``task.check_steps``) among the steps shown.
    """
    both = list(zip(problems, responses, strict=True))
    right = [task.outcome_reward(response.text, problem.ground_truth) == 1.0 for problem, response in both]
    checks = [c.locally_right for problem, response in both for c in task.check_steps(problem.prompt, response.text)]
    return {
        **accuracy(right),
        "steps_right": sum(checks) / len(checks) if checks else 0.0,
        "finished": sum(response.finished for response in responses) / len(responses),
    }


def evaluate_decodings(
    measure: Callable[[str, float], dict[str, Any]], model: Path, data: Path, n_problems: int, seed: int
) -> dict[str, Any]:
    """Measure a model sampled at temperature 1 and greedy, with the name of the decoding and its temperature."""
    started = time.time()
    measured = {name: measure(name, temperature) for name, temperature in DECODINGS.items()}
    about = {"model": str(model), "data": str(data), "n_problems": n_problems, "seed": seed}
    return {**about, **measured, "seconds": round(time.time() - started, 1)}


def evaluate(
    model: Path, data: Path, *, limit: int | None = None, seed: int = 0, max_response_length: int = MAX_RESPONSE_LENGTH
) -> dict[str, Any]:
    """Evaluate a model on the problems of a file."""
    both = load_model(model)
    problems = load_problems(data, limit)
    options = {"seed": seed, "max_response_length": max_response_length}

    def measure(name: str, temperature: float) -> dict[str, Any]:
        return grade(problems, respond(*both, problems, temperature=temperature, description=name, **options))

    return evaluate_decodings(measure, model, data, len(problems), seed)


def write_evaluation(description: str | None, evaluate: Callable[..., dict[str, Any]]) -> None:
    """Evaluate what the command line names, write the result and print its numbers."""
    options = read_options(description, "model", "data", "output", "limit", "seed")
    output = options.pop("output")
    result = evaluate(**options)
    write_json(output, result)
    print(f"Accuracy on {result['n_problems']:,} held-out problems ({output}):")
    for name in DECODINGS:
        row = result[name]
        known = ("accuracy", "standard_error", "n", "outcomes")
        more = [f"{key.replace('_', ' ')} {value:.3g}" for key, value in row.items() if key not in known]
        percent = f"{100 * row['accuracy']:.1f} ± {100 * row['standard_error']:.1f} %"
        print(f"{name.replace('_', ' '):>14}: {', '.join([percent, *more])}")


if __name__ == "__main__":
    write_evaluation(__doc__, evaluate)
