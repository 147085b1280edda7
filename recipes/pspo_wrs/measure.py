# SPDX-License-Identifier: Apache-2.0
"""Measure a policy: its accuracy, number and kinds of steps, and scores by a step reward model.

    python -m recipes.pspo_wrs.measure --model RUN/sft --step-rm RUN/step_rm_honest/model \\
        --data RUN/data/test.parquet --output RUN/before.json

One response per held-out problem, at temperature 1 (seeded): the distribution that training
rewards.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prime_ext.algorithms.accumulation import accumulate
from prime_ext.step_rm.scorers.local import LocalScorer, StepClassifier
from prime_ext.step_rm.scorers.protocol import Chain, StepScores
from prime_ext.tasks.last_digit_chain import outcome_reward
from prime_ext.utils.files import write_json
from recipes.command_line import read_options
from recipes.pspo_wrs.pspo_data import (
    MAX_RESPONSE_LENGTH,
    SUPERFLUOUS,
    USEFUL,
    WRONG,
    Step,
    check_steps,
)
from recipes.quickstart.evaluate import accuracy, load_model, load_problems, respond
from recipes.run_statistics import standard_errors

# A chain of more steps is long. The longest problem needs five, and less than 5 % of the
# human-labeled chains of PSPO have more than eight.
LONG = 8
KINDS = (USEFUL, SUPERFLUOUS, WRONG)


def describe_steps(steps: Sequence[Sequence[Step]]) -> dict[str, Any]:
    """Count steps and their kinds.

    Returns:
        ``mean`` and ``standard_error`` of the number of steps, ``histogram`` (number of steps to
        responses), ``long`` (the share of responses with more than :data:`LONG` steps), and
        ``kinds``, the mean number of steps of each kind in a response; steps after a wrong one
        count as what they are themselves.
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


def describe_scores(
    steps: Sequence[Sequence[Step]], scores: Sequence[StepScores]
) -> dict[str, Any]:
    """Return the geometric mean of step scores, averaged over responses, and means by kind."""
    by_kind = defaultdict(list)
    geometric = []
    for of_response, scored in zip(steps, scores, strict=True):
        for step, score in zip(of_response, scored.scores, strict=True):
            by_kind[step.kind].append(score)
        score_BS = torch.tensor([list(scored.scores)], dtype=torch.float64)
        geometric.append(float(accumulate(score_BS, torch.ones_like(score_BS))))
    by_kind_mean = {kind: float(np.mean(by_kind[kind])) for kind in KINDS if kind in by_kind}
    return {"score": float(np.mean(geometric)), "score_by_kind": by_kind_mean}


def measure(
    model: Path, data: Path, step_rm: Path, *, limit: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """Measure a policy.

    Returns:
        ``accuracy``, its ``standard_error`` and ``outcomes`` (1 or 0 per problem); ``cut_off``, the
        share of responses that reached the length limit; ``steps``, see :func:`describe_steps`;
        ``score`` and ``score_by_kind``, see :func:`describe_scores`.
    """
    problems = load_problems(data, limit)
    options = {"temperature": 1.0, "seed": seed, "max_response_length": MAX_RESPONSE_LENGTH}
    both = list(zip(problems, respond(*load_model(model), problems, **options), strict=True))
    steps = [check_steps(problem.prompt, response.text) for problem, response in both]
    chains = [
        Chain(tuple(step.text for step in of_response), question=problem.prompt)
        for problem, of_response in zip(problems, steps, strict=True)
    ]
    return {
        **accuracy(
            [
                outcome_reward(response.text, problem.ground_truth) == 1.0
                for problem, response in both
            ]
        ),
        "cut_off": sum(not response.finished for _, response in both) / len(both),
        "steps": describe_steps(steps),
        **describe_scores(
            steps, LocalScorer(StepClassifier(step_rm, device="cpu")).score_now(chains)
        ),
        "examples": [f"{problem.prompt} {response.text}" for problem, response in both[:8]],
    }


if __name__ == "__main__":
    options = read_options(__doc__, "model", "step-rm", "data", "output", "limit", "seed")
    output = options.pop("output")
    result = measure(**options)
    write_json(output, result)
    steps = result["steps"]
    print(
        f"{output}: accuracy {100 * result['accuracy']:.1f} ± {100 * result['standard_error']:.1f}"
        f" %, {steps['mean']:.2f} steps on average, {100 * steps['long']:.1f} % of the responses"
        f" with more than {LONG}"
    )
