# SPDX-License-Identifier: Apache-2.0
"""Write demonstrations of the game next to the rows of ``data_preprocessing.environment``.

python -m recipes.environment.environment_data --output-dir outputs/environment_quickstart/data
"""

import random
from collections.abc import Set
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq

from prime_ext.environments.number_path import NumberPath
from prime_ext.utils.files import write_json
from recipes.command_line import read_options
from recipes.environment import number_path_task as task
from recipes.quickstart.quickstart_data import MISCONCEPTION_SEED, write_parquet

SIZE = 24000


def write_demonstrations(
    path: Path, game: NumberPath, exclude: Set[str], *, mean_error: float = 0.35, seed: int = 0
) -> None:
    """Write demonstrations of episodes that begin with none of the texts ``exclude``."""
    starts = islice(task.draw_starts(game, exclude, seed), SIZE)
    rng = random.Random(f"moves-{seed}")
    table = task.draw_misconceptions(mean_error, MISCONCEPTION_SEED)
    rows = [{"messages": task.demonstrate(game, start, table, rng)} for start in starts]
    write_parquet(path, rows)


def write_data(output_dir: Path, *, mean_error: float = 0.35, seed: int = 0) -> None:
    """Write ``sft.parquet`` and ``data.json``; no episode begins as one of ``test.parquet``."""
    tests = pq.read_table(output_dir / "test.parquet", columns=["prompt"])["prompt"].to_pylist()
    exclude = {prompt[-1]["content"] for prompt in tests}
    path = output_dir / "sft.parquet"
    write_demonstrations(path, task.build_game(), exclude, mean_error=mean_error, seed=seed)
    about = {"demonstrations": SIZE, "mean_error": mean_error, "seed": seed}
    write_json(output_dir / "data.json", {"environment": task.NAME, **about})


if __name__ == "__main__":
    write_data(**read_options(__doc__, "output-dir", "mean-error", "seed"))
