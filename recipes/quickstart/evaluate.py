# SPDX-License-Identifier: Apache-2.0
"""Accuracy of a model on the held-out problems: sampled at temperature 1 (seeded) and greedy.

    python -m recipes.quickstart.evaluate --model outputs/quickstart/sft \
        --data outputs/quickstart/data/test.parquet --output outputs/quickstart/evaluation_before.json
"""

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from prime_ext.generate.generation import BatchedGenerator, GenerationRequest
from prime_ext.generate.local_model import find_model
from prime_ext.tasks import last_digit_chain as task
from prime_ext.utils.files import write_json

MAX_RESPONSE_LENGTH = 48
BATCH_SIZE = 500


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

    Raises:
        BackendError: the folder is neither.
    """
    folder = find_model(str(Path(path).resolve()))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


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
    problems: Sequence[HeldOutProblem],
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


def proportion(right: float, count: int) -> dict[str, float | int]:
    """Accuracy with its binomial standard error sqrt(p (1 - p) / n)."""
    accuracy = right / count
    return {"accuracy": accuracy, "standard_error": math.sqrt(accuracy * (1 - accuracy) / count), "n": count}


def grade(problems: Sequence[HeldOutProblem], responses: Sequence[Response]) -> dict:
    """Grade one response per problem; an unfinished one that shows its answer counts too.

    Returns:
        Accuracy and standard error, in all and by chain length; the fraction of locally right steps (see
        ``task.check_steps``) among the steps shown; the fraction of finished responses; and ``outcomes``, one ``1``
        (right) or ``0`` per problem, for paired comparisons.
    """
    by_length: dict[int, list[float]] = defaultdict(list)
    outcomes, checks = "", []
    for problem, response in zip(problems, responses, strict=True):
        right = task.outcome_reward(response.text, problem.ground_truth)
        by_length[len(task.parse_prompt(problem.prompt).operations)].append(right)
        checks += [check.locally_right for check in task.check_steps(problem.prompt, response.text)]
        outcomes += "1" if right == 1.0 else "0"
    return {
        **proportion(outcomes.count("1"), len(outcomes)),
        "steps_right": sum(checks) / len(checks) if checks else 0.0,
        "steps_shown": len(checks),
        "finished": sum(response.finished for response in responses) / len(responses),
        "outcomes": outcomes,
        "by_chain_length": {str(n): proportion(sum(by_length[n]), len(by_length[n])) for n in sorted(by_length)},
    }


def evaluate(
    model_path: Path,
    data: Path,
    *,
    limit: int | None = None,
    seed: int = 0,
    max_response_length: int = MAX_RESPONSE_LENGTH,
) -> dict:
    """Evaluate a model on the problems of a file; returns what ``main`` writes."""
    started = time.time()
    model, tokenizer = load_model(model_path)
    problems = load_problems(data, limit)
    options = {"seed": seed, "max_response_length": max_response_length}
    graded = {
        name: grade(problems, respond(model, tokenizer, problems, temperature=temperature, description=name, **options))
        for name, temperature in (("temperature_1", 1.0), ("greedy", 0.0))
    }
    source = {"model": str(model_path), "data": str(data), "n_problems": len(problems), "seed": seed}
    return {**source, **graded, "seconds": round(time.time() - started, 1)}


def table(result: dict) -> str:
    """The result as a small text table, accuracies in percent."""
    lengths = result["greedy"]["by_chain_length"]
    rows = [["", "all", "s.e.", *(f"{length} steps" for length in lengths), "right steps"]]
    for name, label in (("temperature_1", "temperature 1"), ("greedy", "greedy")):
        graded = result[name]
        values = [graded["accuracy"], graded["standard_error"]]
        values += [group["accuracy"] for group in graded["by_chain_length"].values()] + [graded["steps_right"]]
        rows.append([label, *(f"{100 * value:.1f}" for value in values)])
    return "\n".join("  ".join([f"{label:>13}", *(f"{cell:>11}" for cell in cells)]) for label, *cells in rows)


def command_line(description: str | None) -> argparse.Namespace:
    """What evaluations of a model on held-out problems are asked."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder, or checkpoint of verl")
    parser.add_argument("--data", type=Path, required=True, help="test.parquet written by data.py")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--limit", type=int, default=None, help="use only the first problems")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling")
    return parser.parse_args()


def main() -> None:
    arguments = command_line(__doc__)
    result = evaluate(arguments.model, arguments.data, limit=arguments.limit, seed=arguments.seed)
    write_json(arguments.output, result)
    print(f"Accuracy on {result['n_problems']:,} held-out problems, in percent ({arguments.output}):")
    print(table(result))


if __name__ == "__main__":
    main()
