# SPDX-License-Identifier: Apache-2.0
"""Write the agent's data: ``train`` and ``test`` in verl's RL schema, ``sft`` as chats.

python -m recipes.agent.agent_data --output-dir outputs/agent_quickstart/data
"""

import random
from pathlib import Path

from recipes.agent import calculator_task as task
from recipes.command_line import read_options
from recipes.quickstart.quickstart_data import (
    MISCONCEPTION_SEED,
    conversation,
    rl_rows,
    write_splits,
)


def write_data(
    output_dir: Path,
    *,
    train_size: int = 8192,
    test_size: int = 1000,
    sft_size: int = 64000,
    mean_error: float = 0.35,
    seed: int = 0,
) -> None:
    """Write the files and ``data.json``."""
    sizes = {"train": train_size, "test": test_size}
    rows = {
        split: rl_rows(split, task.generate_problems(split, size, seed), task.DATA_SOURCE)
        for split, size in sizes.items()
    }
    table = task.draw_misconceptions(mean_error, MISCONCEPTION_SEED)
    rng = random.Random(f"episodes-{seed}")
    rows["sft"] = [
        conversation(problem, *task.demonstrate(problem, table, rng=rng))
        for problem in task.generate_problems("sft", sft_size, seed)
    ]
    settings = {
        "mean_error": mean_error,
        "gives_up": task.GIVES_UP,
        "times_out": task.TIMES_OUT,
        "seed": seed,
    }
    write_splits(output_dir, rows, settings)


if __name__ == "__main__":
    write_data(**read_options(__doc__, "output-dir", "test-size", "mean-error", "seed"))
