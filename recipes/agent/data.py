# SPDX-License-Identifier: Apache-2.0
"""Write the data of the agent: ``train``, ``val`` and ``test`` in verl's RL schema, ``sft`` as conversations.

python -m recipes.agent.data --output-dir outputs/agent_quickstart/data
"""

import random
from pathlib import Path

from recipes.agent import task
from recipes.quickstart.data import command_line, rl_rows, write_splits


def write_data(
    output_dir: Path,
    *,
    train_size: int = 8192,
    test_size: int = 1000,
    sft_size: int = 64000,
    mean_error: float = 0.35,
    gives_up: float = 0.5,
    times_out: float = 0.1,
    misconception_seed: int = 123,
    seed: int = 0,
) -> None:
    """Write the files and ``data.json``."""
    sizes = {"train": train_size, "test": test_size}
    rows = {
        split: rl_rows(split, task.generate_problems(split, size, seed), task.DATA_SOURCE)
        for split, size in sizes.items()
    }
    table, rng = task.draw_misconceptions(mean_error, misconception_seed), random.Random(f"episodes-{seed}")
    rows["sft"] = [
        {
            "messages": [
                {"role": "user", "content": problem.prompt},
                *task.demonstrate(problem, table, gives_up, times_out, rng),
            ]
        }
        for problem in task.generate_problems("sft", sft_size, seed)
    ]
    settings = {"mean_error": mean_error, "gives_up": gives_up, "times_out": times_out}
    write_splits(output_dir, rows, {**settings, "misconception_seed": misconception_seed, "seed": seed})


def main() -> None:
    write_data(**vars(command_line(__doc__, 1000, 0.35)))


if __name__ == "__main__":
    main()
