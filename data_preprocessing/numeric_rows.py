# SPDX-License-Identifier: Apache-2.0
"""Problems of the numeric sets as rows of verl's RL schema, and the files that hold them."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from prime_ext.tasks.rl_rows import OUTPUTS, RowWriter, refuse_leftovers, rl_row, rl_schema
from prime_ext.tasks.task import Problem, Task
from prime_ext.utils.files import atomic_path, write_json

SCHEMA = rl_schema(
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
class Place:
    """A usable row: its task, the split of its file, the file and the number in it."""

    task: Task
    split: str
    path: Path
    row: int
    problem: Problem


def choice_row(task: Task, problem: Problem, prompt: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """A problem in the schema of verl's ``RLHFDataset``; ``extra`` is the rest of ``extra_info``."""
    described = {
        "texts": list(task.problem_texts(problem)),
        # The verifier takes the names of the options, or how many there are.
        "options": list(task.option_names) or None,
        "n_options": None if task.option_names else task.n_options,
        "label": task.label(problem.gold),
    }
    return rl_row(task.data_source, task.messages(problem, prompt), task.ability, problem.gold, {**described, **extra})


def write_rows(
    folder: Path, places: Sequence[Place], groups: Sequence[str], outputs: Sequence[str], prompt: str, report: object
) -> None:
    """Write ``<output>.parquet`` for each of ``outputs``, and ``report.json``: all of them or none.

    Args:
        folder: where they go.
        places: the rows.
        groups: the group of each row.
        outputs: the split that each row goes to.
        prompt: the name of the prompt that the rows show.
        report: what goes into ``report.json``.

    Raises:
        SourceError: an earlier run left a file that this one would not replace.
    """
    refuse_leftovers(folder, set(outputs))
    with ExitStack() as stack:
        finished = {
            name: stack.enter_context(atomic_path(folder / f"{name}.parquet")) for name in OUTPUTS if name in outputs
        }
        write_json(stack.enter_context(atomic_path(folder / "report.json")), report)
        writers = {name: stack.enter_context(RowWriter(path, SCHEMA)) for name, path in finished.items()}
        for place, group, name in zip(places, groups, outputs, strict=True):
            writer = writers[name]
            extra = {"split": name, "index": writer.rows, "group": group, "file": place.path.name, "row": place.row}
            writer.write(choice_row(place.task, place.problem, prompt, extra))
