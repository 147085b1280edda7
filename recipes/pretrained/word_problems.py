# SPDX-License-Identifier: Apache-2.0
"""Word problems of one step with small numbers, in verl's RL schema.

    python -m recipes.pretrained.word_problems --output-dir outputs/pretrained/data

The problems of the two files are disjoint.
"""

import argparse
import operator
import random
from pathlib import Path
from typing import NamedTuple

from prime_ext.verifiers.sources import register_source
from recipes.quickstart.data import rl_rows, write_parquet

SOURCE = "prime_ext/word_problems"
# The last number counts: a small chat model knows no other format yet.
register_source(SOURCE, "math", extraction="lenient")
REQUEST = "Reply in one short sentence."
NAMES = ("Tom", "Anna", "Ben", "Lucy", "Omar", "Mia", "Sam", "Nina", "Leo", "Ruth")
THINGS = ("apples", "books", "marbles", "stamps", "coins", "shells", "cards", "pencils", "buttons", "stickers")


class WordProblem(NamedTuple):
    """A question and its answer."""

    question: str
    answer: int

    @property
    def prompt(self) -> str:
        return f"{self.question} {REQUEST}"


TEMPLATES = (
    ("{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?", operator.add),
    ("{name} has {a} boxes with {b} {things} each. How many {things} does {name} have?", operator.mul),
)


def word_problems(count: int, seed: int) -> list[WordProblem]:
    """Different problems."""
    rng = random.Random(f"word problems {seed}")
    found: dict[WordProblem, None] = {}
    while len(found) < count:
        a, b, (text, combine) = rng.randint(2, 5), rng.randint(2, 5), rng.choice(TEMPLATES)
        question = text.format(name=rng.choice(NAMES), things=rng.choice(THINGS), a=a, b=b)
        found[WordProblem(question, combine(a, b))] = None
    return list(found)


def write_data(output_dir: Path, train: int = 2048, test: int = 256, seed: int = 0) -> None:
    """Write ``train.parquet`` and ``test.parquet``."""
    problems = word_problems(train + test, seed)
    for split, part in (("train", problems[:train]), ("test", problems[train:])):
        write_parquet(output_dir / f"{split}.parquet", rl_rows(split, part, SOURCE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_data(arguments.output_dir, seed=arguments.seed)
    print(f"{arguments.output_dir}: train.parquet, test.parquet")


if __name__ == "__main__":
    main()
