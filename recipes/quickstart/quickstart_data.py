# SPDX-License-Identifier: Apache-2.0
"""Write the quickstart's data: ``train``, ``val``, ``test`` (RL) and ``sft`` in verl's schemas.

The prompts of the four files are disjoint by construction (see ``task.get_split``) and unique
within each file. Only ``sft`` holds demonstrations, and they are noisy on purpose; the RL files
hold the right final answer and no steps.

    python -m recipes.quickstart.quickstart_data --output-dir outputs/quickstart/data
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prime_ext.tasks import last_digit_chain as task
from prime_ext.tasks.rl_rows import rl_row
from prime_ext.utils.files import write_atomically, write_json
from recipes.command_line import read_options
from recipes.quickstart import demonstrators

MISCONCEPTION_SEED = 123


def rl_rows(split: str, problems: Sequence[Any], source: str = task.DATA_SOURCE) -> list[dict]:
    """Return rows for verl's ``RLHFDataset``, of problems with a prompt and an answer."""
    rows = []
    for index, problem in enumerate(problems):
        message = {"role": "user", "content": problem.prompt}
        rows.append(
            rl_row(source, [message], "math", str(problem.answer), {"split": split, "index": index})
        )
    return rows


def conversation(problem: Any, *replies: Mapping[str, str]) -> dict[str, list]:
    """Return a row in the schema of verl's ``MultiTurnSFTDataset``."""
    return {"messages": [{"role": "user", "content": problem.prompt}, *replies]}


def sft_rows(problems: Sequence[task.ChainProblem], mean_error: float, seed: int) -> list[dict]:
    """Return noisy demonstrations."""
    misconceptions = demonstrators.draw_misconceptions(mean_error, MISCONCEPTION_SEED)
    rng = random.Random(f"demonstrations-{seed}")
    return [
        conversation(
            problem,
            {
                "role": "assistant",
                "content": demonstrators.demonstrate(problem, misconceptions, rng),
            },
        )
        for problem in problems
    ]


def write_parquet(path: Path, rows: Sequence[dict]) -> None:
    """Write rows to a parquet file, atomically."""
    with write_atomically(path) as temporary:
        pq.write_table(pa.Table.from_pylist(list(rows)), temporary)


def write_splits(
    output_dir: Path,
    rows: Mapping[str, Sequence[dict]],
    settings: Mapping[str, Any],
    **more_counts: int,
) -> None:
    """Write a parquet file for each split and, last, ``data.json``, which marks all as complete.

    It has the settings and the number of rows, also of further files that are there already.
    """
    for split, content in rows.items():
        write_parquet(output_dir / f"{split}.parquet", content)
    counts = {split: len(content) for split, content in rows.items()} | more_counts
    write_json(
        output_dir / "data.json",
        {"rows": counts, **settings, "misconception_seed": MISCONCEPTION_SEED},
    )


def write_data(
    output_dir: Path,
    *,
    train_size: int = 8192,
    val_size: int = 256,
    test_size: int = 2000,
    sft_size: int = 64000,
    mean_error: float = 0.25,
    seed: int = 0,
    chain_lengths: Sequence[int] = task.CHAIN_LENGTHS,
) -> None:
    """Write the four files and ``data.json``."""
    rows = {
        split: rl_rows(split, task.generate_problems(split, size, seed, chain_lengths))
        for split, size in {"train": train_size, "val": val_size, "test": test_size}.items()
    }
    rows["sft"] = sft_rows(
        task.generate_problems("sft", sft_size, seed, chain_lengths), mean_error, seed
    )
    write_splits(
        output_dir,
        rows,
        {"mean_error": mean_error, "seed": seed, "chain_lengths": list(chain_lengths)},
    )


if __name__ == "__main__":
    write_data(**read_options(__doc__, "output-dir", "test-size", "mean-error", "seed"))
