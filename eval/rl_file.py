# SPDX-License-Identifier: Apache-2.0
"""Files of RL rows as tasks, such as the ``test.parquet`` of ``data_preprocessing.pipeline``."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prime_ext.environments.names import DATA_SOURCE
from prime_ext.tasks.benchmark_task import (
    CHOICE_METRICS,
    BenchmarkProblem,
    BenchmarkSource,
    Decoding,
    Gold,
    Prompt,
    Task,
)
from prime_ext.tasks.cells import read_cell
from prime_ext.tasks.rl_rows import JudgedRow, find_row_faults
from prime_ext.utils.fields import Row, parse_rows
from prime_ext.utils.rows import BadRow
from prime_ext.verifiers.multiple_choice import MultipleChoiceVerifier
from prime_ext.verifiers.sources import UnknownSource, choice_options, find_source

from .environment_task import make_environment_task

SUFFIXES = (".parquet", ".jsonl", ".json")
MAX_NEW_TOKENS = 2048
# Data source, ability, and the options of multiple choice (names or their number).
Kind = tuple[str, str, tuple[str, ...] | int]


def read_rl_tasks(path: Path) -> list[tuple[Task, dict[str, BenchmarkProblem]]]:
    """Return a task, with its problems by the number of the row, for each data source of a file.

    Rows with other options of multiple choice are another task. Raises SourceError: a row is not in
    verl's schema, has several turns, or no verifier judges its data source.
    """
    problems: dict[Kind, dict[str, BenchmarkProblem]] = {}
    for number, (_, (kind, problem)) in enumerate(parse_rows(path, _read_row), start=1):
        problems.setdefault(kind, {})[str(number)] = problem
    stem = f"{path.resolve().parent.name}_{path.stem}"
    tasks: dict[str, tuple[Task, dict[str, BenchmarkProblem]]] = {}
    for kind, kind_problems in problems.items():
        name = re.sub(r"[^\w.-]", "_", stem if len(problems) == 1 else f"{stem}.{kind[0]}")
        while name in tasks:
            name += "_"
        tasks[name] = (_make_task(name, path, *kind), kind_problems)
    return list(tasks.values())


def _read_row(row: Row) -> tuple[Kind, BenchmarkProblem]:
    for fault in find_row_faults(row, JudgedRow):
        raise BadRow(fault)
    roles = [message["role"] for message in row["prompt"]]
    texts: list[Any] = [message["content"] for message in row["prompt"]]
    if roles not in (["user"], ["system", "user"]) or not all(
        isinstance(text, str) for text in texts
    ):
        raise BadRow(
            "prompt must be a text of the user, perhaps after one of the system, got messages of"
            f" {', '.join(roles)}"
        )
    fields = {"problem": texts[-1], "system": texts[0] if len(texts) == 2 else ""}
    if row["data_source"].startswith(DATA_SOURCE):
        fields["seed"] = str(_read_seed(row.get("extra_info")))
        environment = row["data_source"].removeprefix(DATA_SOURCE)
        return (row["data_source"], "game", ()), BenchmarkProblem(fields=fields, gold=environment)
    try:
        source = find_source(row["data_source"])
    except UnknownSource as error:
        raise BadRow(f"{str(error).partition(';')[0]}; --modules MODULE adds one") from error
    gold = read_cell(row["reward_model"]["ground_truth"], "reward_model.ground_truth")
    options: tuple[str, ...] | int = ()
    if source.task == "choice":
        options, gold = _read_choice(row.get("extra_info"), gold)
    kind = (row["data_source"], str(row.get("ability") or source.task), options)
    return kind, BenchmarkProblem(fields=fields, gold=gold)


def _read_seed(extra: Any) -> int:
    """Return the seed of a row of an environment. Raises BadRow."""
    seed = extra.get("seed") if isinstance(extra, Mapping) else None
    if not isinstance(seed, int):
        raise BadRow(f"extra_info.seed must be a whole number for an environment, got {seed!r}")
    return seed


def _read_choice(extra: Any, gold: str) -> tuple[tuple[str, ...] | int, str]:
    """Return the options of a row, and the number of the right one. Raises BadRow."""
    known = choice_options(extra if isinstance(extra, Mapping) else {})
    names = known.get("names", ())
    number = known.get("n_options")
    if not names and not isinstance(number, int):
        raise BadRow("extra_info has neither options nor n_options, which multiple choice needs")
    try:
        right = MultipleChoiceVerifier(names, number).gold_option(gold)
    except ValueError as error:
        raise BadRow(str(error)) from error
    return names or number, str(right)


def _make_task(
    name: str, path: Path, data_source: str, ability: str, options: tuple[str, ...] | int
) -> Task:
    title = f"{path.resolve().parent.name}/{path.name}, {data_source}"
    if data_source.startswith(DATA_SOURCE):
        return make_environment_task(name, title, data_source.removeprefix(DATA_SOURCE))
    return Task(
        name=name,
        title=title,
        description=f"Rows of {path.name}.",
        license="unknown",
        data_source=data_source,
        ability=ability,
        source=BenchmarkSource(),
        fields={},
        texts=("problem",),
        gold=(Gold(("reward_model",)),),
        prompts={"default": Prompt(user="{{problem}}", system="{{system}}")},
        metrics=CHOICE_METRICS if options else CHOICE_METRICS[:1],
        decoding={"greedy": Decoding(max_new_tokens=MAX_NEW_TOKENS)},
        options=options,
    )
