# SPDX-License-Identifier: Apache-2.0
"""AwpNLI, NewsNLI, RedditNLI, RTE-Quant, StressTest and QQA in verl's RL schema.

    prime-ext data numeric-reasoning --data-dir DATA --output-dir data/numeric
    prime-ext data numeric-reasoning --tasks qqa --input qqa=QQA_train.json \\
        --output-dir data/qqa

Rows, prompts and labels follow ``prime_ext/tasks/benchmarks/*.yaml``. Without --data-dir and
--input the files come from the Hugging Face hub. Any file may have EQUATE's columns (premise,
hypothesis, label), Quantitative-101's (statement1, statement2, answer; question, Option1, Option2,
answer) or MNLI's (sentence1, sentence2, gold_label).

Writes ``train.parquet``, ``validation.parquet`` and ``test.parquet``, as far as they have rows, and
``report.json``; either all of them or none. A row that cannot be used is one line on stderr and
counted. Exits with 2 and one line when nothing can be written. See
docs/reference/numeric_reasoning.md.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from prime_ext.step_rm.question_split import pick_split
from prime_ext.tasks.benchmark_task import SPLITS, BenchmarkProblem, Task
from prime_ext.tasks.rl_rows import OUTPUTS, build_rl_schema, refuse_leftovers, rl_row, write_rows
from prime_ext.tasks.task_file import load_task
from prime_ext.tasks.task_rows import find_source_files
from prime_ext.utils.arguments import (
    add_data_argument,
    add_output_argument,
    add_prompt_argument,
    add_split_arguments,
    add_tasks_argument,
    build_parser,
    check_split,
)
from prime_ext.utils.files import write_json
from prime_ext.utils.rows import BadRow, SourceError

from .command import add_files_argument, fill_folder, parse_files, program
from .problem_sources import parse_rows
from .text_similarity import find_near_groups

TASKS = ("awpnli", "newsnli", "redditnli", "rte_quant", "stresstest", "qqa")
SCHEMA = build_rl_schema(
    {
        "split": pa.string(),
        "index": pa.int64(),
        "texts": pa.list_(pa.string()),
        "options": pa.list_(pa.string()),
        "n_options": pa.int32(),
        "label": pa.string(),
        "group": pa.string(),
        "file": pa.string(),
        "row": pa.int64(),
    }
)


@dataclass(frozen=True)
class SourceRow:
    """A usable row: its task, the split of its file, the file and the number in it."""

    task: Task
    split: str
    path: Path
    row: int
    problem: BenchmarkProblem


def find_files(task: Task, files: Mapping[str, Path], data_dir: Path | None) -> dict[str, Path]:
    """Return a task's files by split: ``files``, or those in ``data_dir`` or on the hub."""
    splits = task.source.places(local=data_dir is not None)
    if not files and not splits:
        lacks = "is not on the hub" if data_dir is None else "names no local file"
        raise SourceError(f"{task.name} {lacks}; give --input {task.name}=FILE")
    return dict(files) or {
        split: path for split in splits for path in find_source_files(task, data_dir, split)
    }


def read_rows(task: Task, files: Mapping[str, Path], counts: dict[str, Any]) -> Iterator[SourceRow]:
    """Yield usable rows; print and count bad ones. Raises SourceError: a file has no usable row."""
    for split, path in files.items():
        good = 0
        # The same file may contain rows of another task.
        rows = parse_rows(
            path, lambda row, *_: task.problem(row) if task.source.holds(row) else None
        )
        for number, problem in rows:
            if problem is None:
                continue
            counts["read"] += 1
            if isinstance(problem, BadRow):
                print(f"{path} row {number}: {problem}", file=sys.stderr)
                counts["bad"][str(problem)] += 1
                continue
            good += 1
            yield SourceRow(task, split, path, number, problem)
        if good == 0:
            reasons = "; ".join(counts["bad"]) or "it has no rows"
            raise SourceError(f"{path}: nothing to use for {task.name}: {reasons[:300]}")


def drop_duplicates(
    rows: Sequence[SourceRow], tasks: Mapping[str, dict[str, Any]]
) -> list[SourceRow]:
    """Return each problem once, white space aside, preferably from the test split.

    Problems with several answers are left out.
    """
    copies: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        key = (row.task.name, *(" ".join(text.split()) for text in row.problem.fields.values()))
        copies[key].append(number)
    kept = []
    for numbers in copies.values():
        counts = tasks[rows[numbers[0]].task.name]
        if len({rows[number].problem.gold for number in numbers}) > 1:
            counts["contradictory_dropped"] += len(numbers)
        else:
            counts["duplicates_merged"] += len(numbers) - 1
            kept.append(
                max(numbers, key=lambda number: (SPLITS.index(rows[number].split), -number))
            )
    return [rows[number] for number in sorted(kept)]


def choose_output(row: SourceRow, group: str, options: argparse.Namespace) -> str:
    """Return a row's output. Raises SourceError: ``official`` without official splits."""
    if options.splits == "test":
        return "test"
    if options.splits == "hashed":
        return pick_split(group, options.validation, options.test, options.seed)
    if row.split == "all":
        raise SourceError(f"{row.task.name} has no official split; leave out --splits official")
    return row.split


def build_choice_row(row: SourceRow, prompt: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a problem into a row of RL; ``extra`` is the rest of ``extra_info``."""
    task = row.task
    problem = row.problem
    described = {
        "texts": list(task.problem_texts(problem)),
        # The verifier takes the names of the options, or how many there are.
        "options": list(task.option_names) or None,
        "n_options": None if task.option_names else task.n_options,
        "label": task.label(problem.gold),
        "file": row.path.name,
        "row": row.row,
    }
    return rl_row(
        task.data_source,
        task.messages(problem, prompt),
        task.ability,
        problem.gold,
        {**described, **extra},
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Convert and write all files or none. Returns the report."""
    check_split(options.validation, options.test)
    files = parse_files(options.input)
    tasks = {task.name: task for task in map(load_task, options.tasks or files or TASKS)}
    for task in tasks.values():
        if task.grader != "choice":
            raise SourceError(f"{task.name} is not multiple choice but {task.grader}")
        task.get_prompt(options.prompt)
    for name in files:
        if name not in tasks:
            raise SourceError(f"--input names {name}, which is not among --tasks {' '.join(tasks)}")
    counts: dict[str, dict[str, Any]] = {
        name: {
            "published": sum(task.source.rows.values()) or None,
            "read": 0,
            "bad": Counter(),
            "duplicates_merged": 0,
            "contradictory_dropped": 0,
            "written": defaultdict(Counter),
        }
        for name, task in tasks.items()
    }
    source_rows: list[SourceRow] = []
    for name, task in tasks.items():
        source_rows += read_rows(
            task, find_files(task, files.get(name, {}), options.data_dir), counts[name]
        )
    source_rows = drop_duplicates(source_rows, counts)
    if not source_rows:
        raise SourceError("nothing is left: all rows are contradictory duplicates")
    groups = find_near_groups([row.task.problem_texts(row.problem) for row in source_rows])
    rows = [
        (row, group, choose_output(row, group, options))
        for row, group in zip(source_rows, groups, strict=True)
    ]
    sides: dict[str, set[str]] = defaultdict(set)
    for row, group, output in rows:
        counts[row.task.name]["written"][output][row.task.label(row.problem.gold)] += 1
        sides[group].add(output)
    for count in counts.values():
        count["bad"] = dict(count["bad"].most_common())
    chosen = ("splits", "prompt", "validation", "test", "seed")
    report = {
        "options": {"tasks": list(tasks), **{name: getattr(options, name) for name in chosen}},
        "tasks": counts,
        "groups": len(sides),
        "largest_group": max(Counter(groups).values()),
        "groups_on_several_sides": sum(len(outputs) > 1 for outputs in sides.values()),
    }
    names = [name for name in OUTPUTS if any(output == name for _, _, output in rows)]
    refuse_leftovers(options.output, names)
    with fill_folder(options.output) as hidden:
        write_json(hidden / "report.json", report)
        for name in names:
            of_output = enumerate((row, group) for row, group, output in rows if output == name)
            made = (
                build_choice_row(
                    row, options.prompt, {"split": name, "index": index, "group": group}
                )
                for index, (row, group) in of_output
            )
            write_rows(hidden / f"{name}.parquet", SCHEMA, made)
    return report


@program("numeric_reasoning")
def main(words: Sequence[str] | None = None) -> int:
    top = build_parser("data numeric-reasoning", __doc__)
    add_tasks_argument(top, f"default: those of --input, else {' '.join(TASKS)}")
    add_files_argument(top, "TASK", "local files; repeatable")
    add_data_argument(top)
    add_output_argument(top, "of the rows and the report")
    about = (
        "hashed: near-duplicates and shared premises stay together (default); official: as the"
        " files are; test: all"
    )
    top.add_argument(
        "--splits", choices=("hashed", "official", "test"), default="hashed", help=about
    )
    add_split_arguments(top, "groups", validation=0.0, test=0.2)
    add_prompt_argument(top)
    for name, counts in run(top.parse_args(words))["tasks"].items():
        written = ", ".join(
            f"{output} {labels.total()}" for output, labels in sorted(counts["written"].items())
        )
        published = counts["published"]
        read = counts["read"]
        of = f" ({published} were published)" if published not in (None, read) else ""
        print(f"{name}: {read} rows{of}, {sum(counts['bad'].values())} bad, {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
