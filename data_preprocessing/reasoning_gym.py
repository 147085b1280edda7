# SPDX-License-Identifier: Apache-2.0
"""Problems of reasoning-gym in verl's RL schema; the scorers of their tasks judge responses.

    prime-ext data reasoning-gym chain_sum --size 2000 --set max_terms=3 \\
        --output-dir data/chain_sum
    prime-ext data reasoning-gym chain_sum=2 gcd=1 --set chain_sum.max_terms=3 \\
        --output-dir data/mix

Needs the extra ``reasoning-gym``. ``TASK=WEIGHT`` is a share of the rows. ``--set NAME=VALUE`` is
for all tasks, ``TASK.NAME=VALUE`` for one. Parameters are those of the library, ``threshold``, the
least score that makes an answer right (1), and ``extraction``, the style in which responses state
answers (boxed; gsm8k, lenient).

Writes ``train.parquet`` and ``test.parquet``, which share no problem; the same command writes the
same bytes. Then checks them as ``data_preprocessing.validate`` does. Exits with 2 and one line when
nothing can be written.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prime_ext.tasks.gym_problems import PREFIX, generate, read_task
from prime_ext.tasks.rl_rows import MATH_SCHEMA, rl_row
from prime_ext.tasks.task_file import load_task
from prime_ext.utils.arguments import (
    add_output_argument,
    add_prompt_argument,
    add_seed_argument,
    build_parser,
)
from prime_ext.utils.rows import SourceError

from . import validate
from .command import add_size_arguments, divide_sizes, program, read_weights, write_splits


def add_parameters(tasks: Sequence[str], settings: Sequence[str]) -> list[str]:
    """Add ``--set`` parameters to tasks. Raises SourceError: a parameter or its task is wrong."""
    named = {task: task for task in tasks}
    for setting in settings:
        owner, dot, _ = setting.partition("=")[0].rpartition(".")
        if dot and owner not in named:
            raise SourceError(
                f"--set {setting}: {owner} is not one of the tasks {', '.join(tasks)}"
            )
        for task in [owner] if dot else tasks:
            named[task] += f":{setting.removeprefix(owner + dot)}"
    for text in named.values():
        read_task(text)
    return [*named.values()]


def make_rows(
    text: str, counts: Mapping[str, int], prompt: str, seed: int
) -> dict[str, list[dict[str, Any]]]:
    """Return rows of one task by split, without their index; ``counts`` are of each split."""
    task = load_task(PREFIX + text)
    problems = generate(text, sum(counts.values()), seed)
    made = {}
    for split, count in counts.items():
        read = [task.problem(next(problems)) for _ in range(count)]
        made[split] = [
            rl_row(
                task.data_source,
                task.messages(problem, prompt),
                task.ability,
                problem.gold,
                {"split": split},
            )
            for problem in read
        ]
    return made


def run(options: Any) -> list[Path]:
    """Write both files or none; return their paths."""
    weights = read_weights(options.tasks, "TASK")
    texts = add_parameters([*weights], options.set)
    rows: dict[str, list[dict[str, Any]]] = {"test": [], "train": []}
    for text, counts in zip(texts, divide_sizes(options, [*weights.values()]), strict=True):
        for split, made in make_rows(text, counts, options.prompt, options.seed).items():
            rows[split] += made
    return write_splits(options.output, MATH_SCHEMA, rows, options.seed)


@program("reasoning_gym")
def main(words: Sequence[str] | None = None) -> int:
    top = build_parser("data reasoning-gym", __doc__)
    top.add_argument("tasks", nargs="+", metavar="TASK[=WEIGHT]")
    top.add_argument("--set", nargs="+", action="extend", default=[], metavar="[TASK.]NAME=VALUE")
    add_size_arguments(top, "problems")
    add_seed_argument(top, "the problems")
    add_prompt_argument(top, "default asks for a box; question has the question alone")
    add_output_argument(top, "of both files")
    return validate.main([*map(str, run(top.parse_args(words)))])


if __name__ == "__main__":
    sys.exit(main())
