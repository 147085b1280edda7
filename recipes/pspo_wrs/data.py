# SPDX-License-Identifier: Apache-2.0
"""Write the data of the CPU recipes of PSPO-WRS.

    python -m recipes.pspo_wrs.data --output-dir outputs/pspo_quickstart/data

``train``, ``val``, ``test`` (verl's RL schema) and ``sft`` (its SFT schema) are disjoint in their prompts, as in
``recipes.quickstart.data``. ``steps_honest.jsonl`` and ``steps_lenient.jsonl`` are chains with a label for every step,
for ``python -m prime_ext.step_rm.convert --chains``; the two differ in what a superfluous step is worth.
"""

import argparse
import random
from pathlib import Path

from prime_ext.tasks.last_digit_chain import Problem, draw_misconceptions
from prime_ext.utils.files import write_json_lines
from recipes.pspo_wrs.task import (
    MAX_RESPONSE_LENGTH,
    OPERANDS,
    OPERATIONS,
    Writer,
    check_steps,
    generate_problems,
    token_count,
    write_solution,
)
from recipes.quickstart.data import rl_rows, write_splits

LABELLERS = {"honest": False, "lenient": True}
# The labelled chains are of many writers with slips of all kinds: the reward model must know mistakes that the policy
# does not make yet.
LABELLED_WRITERS, LABELLED_ERROR, LABELLED_SLIPS = 50, 0.2, 0.1


def sft_rows(problems: list[Problem], mean_error: float, misconception_seed: int, seed: int) -> list[dict]:
    """Demonstrations with systematic mistakes, in steps of all sizes and with superfluous ones.

    Demonstrations that are longer than a response may be are left out.
    """
    misconceptions, rng = draw_misconceptions(mean_error, misconception_seed), random.Random(f"demonstrations-{seed}")
    writer, rows = Writer(), []
    for problem in problems:
        solution = write_solution(problem, misconceptions, writer, rng)
        if token_count(solution) < MAX_RESPONSE_LENGTH:
            messages = [{"role": "user", "content": problem.prompt}, {"role": "assistant", "content": solution}]
            rows.append({"messages": messages})
    return rows


def labelled_chains(problems: list[Problem], lenient: bool, seed: int) -> list[dict]:
    """Chains with labels, in the format ``--chains`` of ``prime_ext.step_rm.convert``; the same for both labellers."""
    rng = random.Random(f"labelled-{seed}")
    writers = [draw_misconceptions(LABELLED_ERROR, rng.randrange(2**31)) for _ in range(LABELLED_WRITERS)]
    rows = []
    for problem in problems:
        solution = write_solution(problem, rng.choice(writers), Writer(slips=LABELLED_SLIPS), rng)
        steps = check_steps(problem.prompt, solution)
        rows.append(
            {
                "question": problem.prompt,
                "steps": [step.text for step in steps],
                "labels": [step.label(lenient) for step in steps],
            }
        )
    return rows


def write_data(
    output_dir: Path,
    *,
    train_size: int = 8192,
    val_size: int = 64,
    test_size: int = 500,
    sft_size: int = 48000,
    labelled_size: int = 20000,
    mean_error: float = 0.25,
    misconception_seed: int = 123,
    seed: int = 0,
) -> None:
    """Write all files and, last, ``data.json``."""
    rows = {}
    for split, size in {"train": train_size, "val": val_size, "test": test_size}.items():
        rows[split] = rl_rows(split, generate_problems(split, size, seed, unique=split == "test"))
    # The labelled problems are problems of the demonstrations: nothing of what the policy is trained or tested on.
    problems = generate_problems("sft", sft_size + labelled_size, seed, unique=False)
    rows["sft"] = sft_rows(problems[:sft_size], mean_error, misconception_seed, seed)
    counts = {}
    for name, lenient in LABELLERS.items():
        chains = labelled_chains(problems[sft_size:], lenient, seed)
        write_json_lines(output_dir / f"steps_{name}.jsonl", chains)
        counts[f"steps_{name}"] = len(chains)
    settings = {"mean_error": mean_error, "misconception_seed": misconception_seed, "seed": seed}
    settings |= {"operations": list(OPERATIONS), "operands": list(OPERANDS)}
    write_splits(output_dir, rows, settings, **counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0, help="which problems are drawn")
    write_data(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
