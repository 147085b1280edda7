# SPDX-License-Identifier: Apache-2.0
"""Measure a model's accuracy on the held-out problems, at temperature 1 (seeded) and greedy.

    python -m recipes.quickstart.evaluate --model outputs/quickstart/sft \\
        --data outputs/quickstart/data/test.parquet \\
        --output outputs/quickstart/evaluation_before.json

The module also computes process rewards of responses, and how well they find the wrong steps.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch
from tqdm import tqdm
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from prime_ext.algorithms.implicit_reward import log_ratio, process_rewards
from prime_ext.algorithms.prm_accuracy import count_pairs
from prime_ext.generate.generation import BatchedGenerator, GenerationRequest
from prime_ext.generate.local_model import find_model
from prime_ext.tasks import last_digit_chain as task
from prime_ext.utils.files import write_json
from recipes.command_line import read_options
from recipes.quickstart import demonstrators

MAX_RESPONSE_LENGTH = 48
BATCH_SIZE = 500
DECODINGS = {"temperature_1": 1.0, "greedy": 0.0}


class HeldOutProblem(NamedTuple):
    """One row of a parquet file in verl's RL schema."""

    prompt: str
    ground_truth: str


class EvaluatedResponse(NamedTuple):
    """A sampled response: tokens, with ``<eos>`` if it was reached; text without special tokens."""

    token_ids: list[int]
    text: str
    finished: bool


def load_model(path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a Hugging Face folder, or a checkpoint of verl, in float32, in evaluation mode.

    ``BackendError``: the folder is neither.
    """
    folder = find_model(str(Path(path).resolve()))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def load_problems(path: str | Path, limit: int | None = None) -> list[HeldOutProblem]:
    """Read the problems of a parquet file in verl's RL schema, or its first ``limit``."""
    rows = pq.read_table(path, columns=["prompt", "reward_model"]).slice(0, limit).to_pylist()
    if not rows:
        raise ValueError(f"{path} has no rows")
    return [
        HeldOutProblem(row["prompt"][0]["content"], row["reward_model"]["ground_truth"])
        for row in rows
    ]


def prompt_token_ids(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Return the token ids of a question as the rollout sees them."""
    messages = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )


def respond(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[HeldOutProblem],
    *,
    temperature: float,
    seed: int,
    description: str = "responses",
    max_response_length: int = MAX_RESPONSE_LENGTH,
) -> list[EvaluatedResponse]:
    """Sample one response per problem, by ``seed`` and its index; temperature 0 is greedy."""
    generator = BatchedGenerator(
        model,
        eos_token_ids=[tokenizer.eos_token_id],
        pad_token_id=tokenizer.pad_token_id,
        n_tokens=len(tokenizer),
        max_batch_size=BATCH_SIZE,
    )
    responses: list[EvaluatedResponse] = []
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
            responses.append(
                EvaluatedResponse(output.token_ids, text, output.stop_reason == "stop")
            )
    return responses


def accuracy(right: Sequence[bool]) -> dict[str, Any]:
    """Return accuracy, standard error sqrt(p (1 - p) / n), n, and ``outcomes``, a 1 or 0 each."""
    share = sum(right) / len(right)
    outcomes = "".join("1" if is_right else "0" for is_right in right)
    error = math.sqrt(share * (1 - share) / len(right))
    return {"accuracy": share, "standard_error": error, "n": len(right), "outcomes": outcomes}


def grade(
    problems: Sequence[HeldOutProblem], responses: Sequence[EvaluatedResponse]
) -> dict[str, Any]:
    """Grade one response per problem; an unfinished one that shows its answer counts too.

    ``steps_right`` is the fraction of locally right steps (see ``demonstrators.check_steps``) among
    the steps shown.
    """
    both = list(zip(problems, responses, strict=True))
    right = [
        task.outcome_reward(response.text, problem.ground_truth) == 1.0
        for problem, response in both
    ]
    checks = [
        c.locally_right
        for problem, response in both
        for c in demonstrators.check_steps(problem.prompt, response.text)
    ]
    return {
        **accuracy(right),
        "steps_right": sum(checks) / len(checks) if checks else 0.0,
        "finished": sum(response.finished for response in responses) / len(responses),
    }


class Piece(NamedTuple):
    """A token or a turn of a response.

    Attributes:
        text: as it was written.
        reward: its process reward; None for what a tool wrote.
        right: whether the step that it decides is right; None if it decides none.
    """

    text: str
    reward: float | None
    right: bool | None = None


class RewardedResponse(NamedTuple):
    """A response and its pieces with process rewards."""

    problem: HeldOutProblem
    text: str
    right: bool
    pieces: list[Piece]

    @property
    def reward_sum(self) -> float:
        """Sum of the process rewards, by which the PRM orders responses."""
        return sum(piece.reward or 0.0 for piece in self.pieces)


@torch.inference_mode()
def score_tokens(
    prm: PreTrainedModel,
    reference: PreTrainedModel,
    prompt: list[int],
    response: list[int],
    beta: float,
) -> list[float]:
    """Compute r_t = beta (log pi_prm - log pi_reference) of response tokens, at temperature 1."""
    ids = torch.tensor([prompt + response])
    chosen_T1 = torch.tensor(response)[:, None]
    # The logits at a position are those of the next token.
    logits = (model(ids).logits[0, len(prompt) - 1 : -1] for model in (prm, reference))
    prm_T, reference_T = (
        logits_TV.log_softmax(-1).gather(-1, chosen_T1)[:, 0] for logits_TV in logits
    )
    return process_rewards(log_ratio(prm_T, reference_T, torch.ones_like(prm_T)), beta).tolist()


def score_response(
    prm: PreTrainedModel,
    reference: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problem: HeldOutProblem,
    response: EvaluatedResponse,
    beta: float,
) -> RewardedResponse:
    """Score every token of a response; the digit of its result decides a step."""
    names = tokenizer.convert_ids_to_tokens(response.token_ids)
    # Special tokens have no text of their own in the response; <eos> is shown under its name.
    token_at = [
        index
        for index, name in enumerate(names)
        if name not in tokenizer.all_special_tokens
        for _ in name
    ]
    checks = demonstrators.check_steps(problem.prompt, response.text)
    right = {
        token_at[check.result]: check.locally_right for check in checks if check.result is not None
    }
    rewards = score_tokens(
        prm, reference, prompt_token_ids(tokenizer, problem.prompt), response.token_ids, beta
    )
    return RewardedResponse(
        problem,
        response.text,
        task.outcome_reward(response.text, problem.ground_truth) == 1.0,
        [
            Piece(name, rewards[position], right.get(position))
            for position, name in enumerate(names)
        ],
    )


def area_under_curve(scores: Sequence[float], right: Sequence[bool]) -> float | None:
    """Return how often a right one scores above a wrong one (ties: 1/2); None if one is missing."""
    score_N = torch.tensor(scores, dtype=torch.float64)
    label_N = torch.tensor(right, dtype=torch.float64)
    return count_pairs(score_N, label_N, torch.zeros(len(right), dtype=torch.long)).accuracy


def step_statistics(responses: Sequence[RewardedResponse]) -> dict[str, Any]:
    """Measure how well process rewards separate right from wrong steps (``auc``).

    The PRM never saw a label of a step. ``outcome_auc`` compares the sums over right and wrong
    responses.
    """
    pieces = [
        piece for response in responses for piece in response.pieces if piece.right is not None
    ]
    rewards = {
        kind: [piece.reward for piece in pieces if piece.right == kind] for kind in (True, False)
    }
    means = {kind: float(np.mean(values)) if values else None for kind, values in rewards.items()}
    return {
        "responses": len(responses),
        "right_steps": len(rewards[True]),
        "wrong_steps": len(rewards[False]),
        "auc": area_under_curve(
            [piece.reward for piece in pieces], [piece.right for piece in pieces]
        ),
        "mean_reward_right_step": means[True],
        "mean_reward_wrong_step": means[False],
        "outcome_auc": area_under_curve(
            [r.reward_sum for r in responses], [r.right for r in responses]
        ),
    }


def evaluate_decodings(
    measure: Callable[[str, float], dict[str, Any]],
    model: Path,
    data: Path,
    n_problems: int,
    seed: int,
) -> dict[str, Any]:
    """Measure a model at temperature 1 and greedy; ``measure`` gets name and temperature."""
    started = time.time()
    measured = {name: measure(name, temperature) for name, temperature in DECODINGS.items()}
    about = {"model": str(model), "data": str(data), "n_problems": n_problems, "seed": seed}
    return {**about, **measured, "seconds": round(time.time() - started, 1)}


def evaluate(
    model: Path,
    data: Path,
    *,
    limit: int | None = None,
    seed: int = 0,
    max_response_length: int = MAX_RESPONSE_LENGTH,
) -> dict[str, Any]:
    """Evaluate a model on the problems of a file."""
    both = load_model(model)
    problems = load_problems(data, limit)
    options = {"seed": seed, "max_response_length": max_response_length}

    def measure(name: str, temperature: float) -> dict[str, Any]:
        return grade(
            problems, respond(*both, problems, temperature=temperature, description=name, **options)
        )

    return evaluate_decodings(measure, model, data, len(problems), seed)


def write_evaluation(description: str | None, evaluate: Callable[..., dict[str, Any]]) -> None:
    """Evaluate with the options of the command line, write the result and print its numbers."""
    options = read_options(description, "model", "data", "output", "limit", "seed")
    output = options.pop("output")
    result = evaluate(**options)
    write_json(output, result)
    print(f"Accuracy on {result['n_problems']:,} held-out problems ({output}):")
    for name in DECODINGS:
        row = result[name]
        known = ("accuracy", "standard_error", "n", "outcomes")
        more = [
            f"{key.replace('_', ' ')} {value:.3g}" for key, value in row.items() if key not in known
        ]
        percent = f"{100 * row['accuracy']:.1f} ± {100 * row['standard_error']:.1f} %"
        print(f"{name.replace('_', ' '):>14}: {', '.join([percent, *more])}")


if __name__ == "__main__":
    write_evaluation(__doc__, evaluate)
