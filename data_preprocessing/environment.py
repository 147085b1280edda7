# SPDX-License-Identifier: Apache-2.0
"""Episodes of environments in verl's RL schema; the environments judge them, turn by turn.

    prime-ext data environment number_path --size 128 --test-size 32 --output-dir data/number_path
    prime-ext data environment number_path:distance=2=3 my_games:Guess:most=20 --seed 1 \\
        --output-dir data/games

``NAME=WEIGHT`` is a share of the rows. A prompt is the first observation of a seed, which
``extra_info`` has with the name of the environment.

Writes ``train.parquet`` and ``test.parquet``, which share no first observation; the same command
writes the same bytes. Games with a hidden start, whose first observations are all alike, need
``--equal-texts``: their rows differ in seeds alone. Then checks the files as
``data_preprocessing.validate`` does. Exits with 2 and one line when nothing can be written, such as
for an environment that fails, or does not repeat the observation of a seed.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, tee
from pathlib import Path
from typing import Any

import pyarrow as pa

from prime_ext.environments.first_texts import draw_seeds, read_first_texts
from prime_ext.environments.names import BUILT_IN, DATA_SOURCE
from prime_ext.tasks.rl_rows import build_rl_schema, rl_row
from prime_ext.utils.arguments import add_output_argument, add_seed_argument, build_parser
from prime_ext.utils.rows import SourceError

from . import validate
from .command import add_size_arguments, divide_sizes, program, read_weights, write_splits
from .stages import show_progress

SCHEMA = build_rl_schema(
    {"split": pa.string(), "index": pa.int64(), "environment": pa.string(), "seed": pa.int64()}
)

# Seeds without a new first observation after which an environment has too few.
MOST_REPEATED = 200


def split_weight(word: str) -> tuple[str, str, str]:
    """Divide ``NAME=WEIGHT`` at its ``=``; the first one of a parameter belongs to the name."""
    *before, last = word.split(":")
    is_parameter = bool(before) and (before[0] in BUILT_IN or len(before) > 1)
    if last.count("=") > is_parameter:
        return word.rpartition("=")
    return word, "", ""


def find_episodes(
    name: str, count: int, seed: int, known: set[str], equal_texts: bool
) -> Iterator[tuple[int, str]]:
    """Yield seeds and first observations that are not ``known``, and add them to it.

    Raises SourceError: the environment has too few, or fails.
    """
    seeds, shown = tee(draw_seeds(f"{seed} {name}"))
    made = repeated = 0
    for episode, text in zip(seeds, read_first_texts(name, shown), strict=True):
        if text in known and not equal_texts:
            repeated += 1
            if repeated == MOST_REPEATED:
                break
            continue
        known.add(text)
        repeated = 0
        made += 1
        yield episode, text
        if made == count:
            return
    raise SourceError(
        f"{name} made only {made} different first observations, then {repeated} seeds without a new"
        " one; ask for fewer, or for --equal-texts if its start is hidden"
    )


def make_rows(
    name: str, counts: Mapping[str, int], episodes: Iterator[tuple[int, str]], system: str
) -> dict[str, list[dict[str, Any]]]:
    """Return rows of one environment by split, without their index."""
    opening = [{"role": "system", "content": system}] if system else []
    return {
        split: [
            rl_row(
                DATA_SOURCE + name,
                [*opening, {"role": "user", "content": text}],
                "game",
                name,
                {"split": split, "environment": name, "seed": seed},
            )
            for seed, text in islice(episodes, count)
        ]
        for split, count in counts.items()
    }


def run(options: Any) -> list[Path]:
    """Write both files or none; return their paths."""
    weights = read_weights(options.environments, "NAME", split_weight)
    rows: dict[str, list[dict[str, Any]]] = {"test": [], "train": []}
    known: set[str] = set()
    for name, counts in zip(weights, divide_sizes(options, [*weights.values()]), strict=True):
        total = sum(counts.values())
        episodes = find_episodes(name, total, options.seed, known, options.equal_texts)
        shown = iter(show_progress(episodes, name))
        for split, made in make_rows(name, counts, shown, options.system).items():
            rows[split] += made
    return write_splits(options.output, SCHEMA, rows, options.seed)


@program("environment")
def main(words: Sequence[str] | None = None) -> int:
    top = build_parser("data environment", __doc__)
    top.add_argument("environments", nargs="+", metavar="NAME[=WEIGHT]")
    add_size_arguments(top, "episodes")
    top.add_argument("--system", default="", metavar="TEXT", help="system message (default: none)")
    top.add_argument(
        "--equal-texts",
        action="store_true",
        help="keep seeds whose first observation was there before",
    )
    add_seed_argument(top, "the episodes")
    add_output_argument(top, "of both files")
    return validate.main([*map(str, run(top.parse_args(words)))])


if __name__ == "__main__":
    sys.exit(main())
