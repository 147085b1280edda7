# SPDX-License-Identifier: Apache-2.0
"""Write the data of the CPU recipes of PSPO-WRS.

    python -m recipes.pspo_wrs.data --output-dir outputs/pspo_quickstart/data

``train``, ``val``, ``test`` (verl's RL schema) and ``sft`` (its SFT schema) are disjoint in their prompts, as in
``recipes.quickstart.data``. ``steps_honest.jsonl`` and ``steps_lenient.jsonl`` are chains with a label for every step,
for ``python -m prime_ext.step_rm.convert --chains``; the two differ in what a superfluous step is worth.
"""

import random
from pathlib import Path

from prime_ext.tasks.last_digit_chain import Problem, draw_misconceptions
from prime_ext.utils.files import write_json_lines
from recipes.command_line import read_options
from recipes.pspo_wrs.task import (
    LABELS,
    MAX_RESPONSE_LENGTH,
    OPERANDS,
    OPERATIONS,
    check_steps,
    generate_problems,
    token_count,
    write_solution,
)
from recipes.quickstart.data import MISCONCEPTION_SEED, conversation, rl_rows, write_splits

MEAN_ERROR = 0.25
# The labeled chains are of many writers with slips of all kinds: the reward model must know mistakes that the policy
# does not make yet.
LABELED_WRITERS, LABELED_ERROR, LABELED_SLIPS = 50, 0.2, 0.1


def sft_rows(problems: list[Problem], seed: int) -> list[dict]:
    """Return demonstrations with systematic mistakes, in steps of all sizes and with superfluous ones.

    Demonstrations that are longer than a response may be are left out.
    """
    misconceptions = draw_misconceptions(MEAN_ERROR, MISCONCEPTION_SEED)
    rng = random.Random(f"demonstrations-{seed}")
    solutions = [(problem, write_solution(problem, misconceptions, rng)) for problem in problems]
    return [
        conversation(problem, {"role": "assistant", "content": solution})
        for problem, solution in solutions
        if token_count(solution) < MAX_RESPONSE_LENGTH
    ]


def labeled_chains(problems: list[Problem], labeler: str, seed: int) -> list[dict]:
    """Return chains with labels, in the format ``--chains`` of ``prime_ext.step_rm.convert``, the same for both."""
    rng = random.Random(f"labelled-{seed}")
    writers = [draw_misconceptions(LABELED_ERROR, rng.randrange(2**31)) for _ in range(LABELED_WRITERS)]
    rows = []
    for problem in problems:
        steps = check_steps(problem.prompt, write_solution(problem, rng.choice(writers), rng, LABELED_SLIPS))
        labels = [LABELS[labeler][step.kind] for step in steps]
        rows.append({"question": problem.prompt, "steps": [step.text for step in steps], "labels": labels})
    return rows


def write_data(
    output_dir: Path,
    *,
    train_size: int = 8192,
    val_size: int = 64,
    test_size: int = 500,
    sft_size: int = 48000,
    labeled_size: int = 20000,
    seed: int = 0,
) -> None:
    """Write all files and, last, ``data.json``."""
    rows = {}
    for split, size in {"train": train_size, "val": val_size, "test": test_size}.items():
        rows[split] = rl_rows(split, generate_problems(split, size, seed, unique=split == "test"))
    # The labeled problems are problems of the demonstrations: nothing of what the policy is trained or tested on.
    problems = generate_problems("sft", sft_size + labeled_size, seed, unique=False)
    rows["sft"] = sft_rows(problems[:sft_size], seed)
    for labeler in LABELS:
        write_json_lines(output_dir / f"steps_{labeler}.jsonl", labeled_chains(problems[sft_size:], labeler, seed))
    settings = {"mean_error": MEAN_ERROR, "seed": seed, "operations": list(OPERATIONS), "operands": list(OPERANDS)}
    write_splits(output_dir, rows, settings, **{f"steps_{labeler}": labeled_size for labeler in LABELS})


if __name__ == "__main__":
    write_data(**read_options(__doc__, "output-dir", "seed"))
