# SPDX-License-Identifier: Apache-2.0
"""Write demonstrations of the game next to the rows of ``data_preprocessing.environment``.

python -m recipes.environment.environment_data --output-dir outputs/environment_quickstart/data
"""

import random
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq

from prime_ext.utils.files import write_json
from recipes.command_line import read_options
from recipes.environment import number_path_task as task
from recipes.quickstart.quickstart_data import MISCONCEPTION_SEED, write_parquet


def write_demonstrations(
    output_dir: Path, *, size: int = 24000, mean_error: float = 0.35, seed: int = 0
) -> None:
    """Write ``sft.parquet`` and ``data.json``; no episode begins as one of ``test.parquet``."""
    tests = pq.read_table(output_dir / "test.parquet", columns=["prompt"])["prompt"].to_pylist()
    starts = task.draw_starts({prompt[-1]["content"] for prompt in tests}, seed)
    rng = random.Random(f"moves-{seed}")
    table = task.draw_misconceptions(mean_error, MISCONCEPTION_SEED)
    rows = [{"messages": task.demonstrate(start, table, rng)} for start in islice(starts, size)]
    write_parquet(output_dir / "sft.parquet", rows)
    about = {"demonstrations": size, "mean_error": mean_error, "seed": seed}
    write_json(output_dir / "data.json", {"environment": task.NAME, **about})


if __name__ == "__main__":
    write_demonstrations(**read_options(__doc__, "output-dir", "mean-error", "seed"))
