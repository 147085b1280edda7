# SPDX-License-Identifier: Apache-2.0
"""Accuracy of a model on the held-out problems: sampled at temperature 1 (seeded) and greedy.

    python -m recipes.quickstart.evaluate --model outputs/quickstart/sft \
        --data outputs/quickstart/data/test.parquet --output outputs/quickstart/evaluation_before.json
"""

import argparse
import math
import time
from collections import defaultdict
from pathlib import Path

from prime_ext.tasks import last_digit_chain as task
from prime_ext.utils.files import write_json
from recipes.quickstart.respond import MAX_RESPONSE_LENGTH, HeldOutProblem, load_model, load_problems, respond


def proportion(right: float, count: int) -> dict[str, float | int]:
    """Accuracy with its binomial standard error sqrt(p (1 - p) / n)."""
    accuracy = right / count
    return {"accuracy": accuracy, "standard_error": math.sqrt(accuracy * (1 - accuracy) / count), "n": count}


def grade(problems: list[HeldOutProblem], texts: list[str], finished: list[bool]) -> dict:
    """Grade one response per problem.

    Args:
        problems: the questions and their right answers.
        texts: the responses, without special tokens.
        finished: whether the response ended by itself (an unfinished one that shows its answer still counts).

    Returns:
        Accuracy and standard error, in all and by chain length; the fraction of locally right steps (see
        ``task.check_steps``) among the steps shown; the fraction of finished responses; and ``outcomes``, one ``1``
        (right) or ``0`` per problem, for paired comparisons.
    """
    by_length: dict[int, list[float]] = defaultdict(list)
    outcomes: list[str] = []
    steps_right = steps_shown = 0
    for problem, text in zip(problems, texts, strict=True):
        length = len(task.parse_prompt(problem.prompt).operations)
        by_length[length].append(task.outcome_reward(text, problem.ground_truth))
        checks = task.check_steps(problem.prompt, text)
        steps_right += sum(check.locally_right for check in checks)
        steps_shown += len(checks)
        outcomes.append("1" if by_length[length][-1] == 1.0 else "0")
    return {
        **proportion(outcomes.count("1"), len(outcomes)),
        "steps_right": steps_right / steps_shown if steps_shown else 0.0,
        "steps_shown": steps_shown,
        "finished": sum(finished) / len(finished),
        "outcomes": "".join(outcomes),
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
    """Evaluate a Hugging Face folder; returns what ``main`` writes."""
    started = time.time()
    model, tokenizer = load_model(model_path)
    problems = load_problems(data, limit)
    graded = {}
    for name, temperature in (("temperature_1", 1.0), ("greedy", 0.0)):
        responses = respond(
            model,
            tokenizer,
            problems,
            temperature=temperature,
            seed=seed,
            description=name,
            max_response_length=max_response_length,
        )
        graded[name] = grade(problems, [r.text for r in responses], [r.finished for r in responses])
    return {
        "model": str(model_path),
        "data": str(data),
        "n_problems": len(problems),
        "seed": seed,
        **graded,
        "seconds": round(time.time() - started, 1),
    }


def table(result: dict) -> str:
    """The result as a small text table, accuracies in percent."""
    lengths = result["greedy"]["by_chain_length"]
    header = ["", "all", "s.e.", *(f"{length} steps" for length in lengths), "right steps"]
    lines = ["  ".join(f"{cell:>13}" if i == 0 else f"{cell:>11}" for i, cell in enumerate(header))]
    for name, label in (("temperature_1", "temperature 1"), ("greedy", "greedy")):
        graded = result[name]
        values = [graded["accuracy"], graded["standard_error"]]
        values += [group["accuracy"] for group in graded["by_chain_length"].values()]
        values.append(graded["steps_right"])
        lines.append("  ".join([f"{label:>13}", *(f"{100 * value:>11.1f}" for value in values)]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--data", type=Path, required=True, help="test.parquet written by data.py")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--limit", type=int, default=None, help="use only the first problems")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling at temperature 1")
    arguments = parser.parse_args()
    result = evaluate(arguments.model, arguments.data, limit=arguments.limit, seed=arguments.seed)
    write_json(arguments.output, result)
    print(f"Accuracy on {result['n_problems']:,} held-out problems, in percent ({arguments.output}):")
    print(table(result))


if __name__ == "__main__":
    main()
