# SPDX-License-Identifier: Apache-2.0
"""Write word problems of one step with small numbers, in verl's RL schema.

    python -m recipes.pretrained.word_problems --output-dir outputs/pretrained/data

The problems of the two files are disjoint.
"""

import operator
import random
from pathlib import Path
from typing import NamedTuple

from prime_ext.verifiers.sources import register_source
from recipes.command_line import read_options
from recipes.quickstart.data import rl_rows, write_parquet

SOURCE = "prime_ext/word_problems"
# The last number counts: a small chat model knows no other format yet.
register_source(SOURCE, "math", extraction="lenient")
NAMES = ("Tom", "Anna", "Ben", "Lucy", "Omar", "Mia", "Sam", "Nina", "Leo", "Ruth")
THINGS = ("apples", "books", "marbles", "stamps", "coins", "shells", "cards", "pencils", "buttons", "stickers")
TEMPLATES = (
    ("{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?", operator.add),
    ("{name} has {a} boxes with {b} {things} each. How many {things} does {name} have?", operator.mul),
)


class WordProblem(NamedTuple):
    """A question and its answer."""

    prompt: str
    answer: int


def word_problems(count: int, seed: int) -> list[WordProblem]:
    """Draw different problems."""
    rng = random.Random(f"word problems {seed}")
    problems: dict[WordProblem, None] = {}
    while len(problems) < count:
        a, b, (text, combine) = rng.randint(2, 5), rng.randint(2, 5), rng.choice(TEMPLATES)
        question = text.format(name=rng.choice(NAMES), things=rng.choice(THINGS), a=a, b=b)
        problems[WordProblem(f"{question} Reply in one short sentence.", combine(a, b))] = None
    return list(problems)


def write_data(output_dir: Path, train: int = 2048, test: int = 256, seed: int = 0) -> None:
    """Write ``train.parquet`` and ``test.parquet``."""
    problems = word_problems(train + test, seed)
    for split, part in (("train", problems[:train]), ("test", problems[train:])):
        write_parquet(output_dir / f"{split}.parquet", rl_rows(split, part, SOURCE))


if __name__ == "__main__":
    write_data(**read_options(__doc__, "output-dir", "seed"))
