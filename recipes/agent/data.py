# SPDX-License-Identifier: Apache-2.0
"""Write the data of the agent: ``train``, ``val`` and ``test`` in verl's RL schema, ``sft`` as conversations.

python -m recipes.agent.data --output-dir outputs/agent_quickstart/data
"""

import argparse
import random
from pathlib import Path

from prime_ext.utils.files import write_json
from recipes.agent import task
from recipes.quickstart.data import rl_rows, write_parquet


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
    """Write the files and, last, ``data.json`` with the settings, whose presence means that all is complete."""
    sizes = {"train": train_size, "test": test_size, "sft": sft_size}
    for split, size in sizes.items():
        problems = task.generate_problems(split, size, seed)
        if split == "sft":
            table, rng = task.draw_misconceptions(mean_error, misconception_seed), random.Random(f"episodes-{seed}")
            rows = [
                {
                    "messages": [
                        {"role": "user", "content": problem.prompt},
                        *task.demonstrate(problem, table, gives_up, times_out, rng),
                    ]
                }
                for problem in problems
            ]
        else:
            rows = rl_rows(split, problems, task.DATA_SOURCE)
        write_parquet(output_dir / f"{split}.parquet", rows)
        print(f"{output_dir / f'{split}.parquet'}: {size} rows")
    settings = {"mean_error": mean_error, "gives_up": gives_up, "times_out": times_out}
    write_json(
        output_dir / "data.json", {"rows": sizes, **settings, "misconception_seed": misconception_seed, "seed": seed}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--test-size", type=int, default=1000, help="held-out problems for play.py only")
    parser.add_argument("--mean-error", type=float, default=0.35, help="mean probability of a demonstrator's mistake")
    parser.add_argument("--seed", type=int, default=0, help="which problems are drawn")
    write_data(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
