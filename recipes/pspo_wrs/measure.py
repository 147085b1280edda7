# SPDX-License-Identifier: Apache-2.0
"""Accuracy of a policy, how many steps its solutions have and of what kind, and what step reward models think of them.

    python -m recipes.pspo_wrs.measure --policy RUN/sft --step-rm RUN/step_rm_honest/model \
        --data RUN/data/test.parquet --output RUN/before.json

One response per held-out problem, at temperature 1 (seeded): the distribution that training rewards.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from prime_ext.algorithms.accumulation import accumulate
from prime_ext.step_rm.scorers.local import LocalScorer, StepClassifier
from prime_ext.step_rm.scorers.protocol import Chain, StepScores
from prime_ext.tasks.last_digit_chain import outcome_reward
from prime_ext.utils.files import write_json
from recipes.pspo_wrs.task import MAX_RESPONSE_LENGTH, SUPERFLUOUS, USEFUL, WRONG, Step, check_steps
from recipes.quickstart.evaluate import load_model, load_problems, proportion, respond
from recipes.run_statistics import standard_errors

# A chain of more steps is long. The longest problem needs five, and less than 5 % of the human-labelled chains of PSPO
# have more than eight.
LONG = 8
KINDS = (USEFUL, SUPERFLUOUS, WRONG)


def describe_steps(steps: Sequence[Sequence[Step]]) -> dict:
    """Numbers of steps and their kinds.

    Returns:
        ``mean`` and ``standard_error`` of the number of steps, ``histogram`` (number of steps to responses), ``long``
        (the share of responses with more than :data:`LONG` steps), and ``kinds``, the mean number of steps of each kind
        in a response; steps behind a wrong one count as what they are themselves.
    """
    counts = np.array([len(of_response) for of_response in steps])
    kinds = Counter(step.kind for of_response in steps for step in of_response)
    return {
        "mean": float(counts.mean()),
        "standard_error": float(standard_errors(counts)),
        "histogram": {str(n): int(c) for n, c in sorted(Counter(counts.tolist()).items())},
        "long": float((counts > LONG).mean()),
        "kinds": {kind: kinds[kind] / len(counts) for kind in KINDS},
    }


def describe_scores(steps: Sequence[Sequence[Step]], scores: Sequence[StepScores]) -> dict:
    """What a step reward model says: ``geometric``, the mean over responses of the geometric mean of their step scores;
    and the mean score of each kind of step."""
    by_kind, accumulated = defaultdict(list), []
    for of_response, outcome in zip(steps, scores, strict=True):
        for step, score in zip(of_response, outcome.scores, strict=True):
            by_kind[step.kind].append(score)
        score_BS = torch.tensor([list(outcome.scores)], dtype=torch.float64)
        accumulated.append(float(accumulate(score_BS, torch.ones_like(score_BS))))
    return {
        "geometric": float(np.mean(accumulated)),
        "by_kind": {kind: float(np.mean(by_kind[kind])) for kind in KINDS if kind in by_kind},
    }


def measure(policy: Path, data: Path, step_rms: dict[str, Path], *, limit: int | None = None, seed: int = 0) -> dict:
    """Measure a policy.

    Args:
        policy: Hugging Face folder.
        data: ``test.parquet`` of ``data.py``.
        step_rms: folders of step reward models, by name.
        limit: use only the first problems.
        seed: of the sampling.

    Returns:
        ``accuracy`` and its ``standard_error``, ``outcomes`` (1 or 0 per problem), ``cut_off`` (the share of responses
        that reached the length limit), ``steps`` and ``scores``, see above.
    """
    problems = load_problems(data, limit)
    options = {"temperature": 1.0, "seed": seed, "max_response_length": MAX_RESPONSE_LENGTH}
    responses = respond(*load_model(policy), problems, **options)
    both = list(zip(problems, responses, strict=True))
    right = [outcome_reward(response.text, problem.ground_truth) for problem, response in both]
    steps = [check_steps(problem.prompt, response.text) for problem, response in both]
    chains = [
        Chain(tuple(step.text for step in of_response), question=problem.prompt)
        for problem, of_response in zip(problems, steps, strict=True)
    ]
    return {
        **proportion(sum(right), len(right)),
        "outcomes": "".join("1" if value == 1.0 else "0" for value in right),
        "cut_off": sum(not response.finished for response in responses) / len(responses),
        "steps": describe_steps(steps),
        "scores": {
            name: describe_scores(steps, LocalScorer(StepClassifier(folder, device="cpu")).score_now(chains))
            for name, folder in step_rms.items()
        },
        "examples": [f"{problem.prompt} {response.text}" for problem, response in both[:8]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--step-rm", type=Path, required=True, help="folder of the step reward model")
    parser.add_argument("--data", type=Path, required=True, help="test.parquet written by data.py")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--limit", type=int, default=None, help="use only the first problems")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling")
    options = parser.parse_args()
    step_rms = {"step_rm": options.step_rm}
    result = measure(options.policy, options.data, step_rms, limit=options.limit, seed=options.seed)
    write_json(options.output, result)
    steps = result["steps"]
    print(
        f"{options.output}: accuracy {100 * result['accuracy']:.1f} ± {100 * result['standard_error']:.1f} %, "
        f"{steps['mean']:.2f} steps on average, {100 * steps['long']:.1f} % of the responses with more than {LONG}"
    )


if __name__ == "__main__":
    main()
